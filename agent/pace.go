package agent

import "time"

const (
	paceBase  = 250 * time.Millisecond
	paceMax   = time.Minute
	paceReset = 5 * time.Minute

	// contested is the number of repeats from which on somebody works against the
	// agent, and it is worth a warning.
	contested = 4
)

// pace bounds how fast the agent repeats what others undo: opening a gate that is
// armed again, or writing a heartbeat that is overwritten. The first repeat is
// immediate, those that follow wait twice as long each time, and after some time
// of peace all is forgotten. The zero value remembers nothing.
type pace struct {
	last    time.Time
	repeats int
}

// wait is how long to hold the next one back.
func (p pace) wait(now time.Time) time.Duration {
	if p.repeats < 2 {
		return 0
	}
	return max(0, p.delay()-now.Sub(p.last))
}

// took remembers one.
func (p pace) took(now time.Time) pace {
	if !p.last.IsZero() && now.Sub(p.last) >= paceReset {
		p.repeats = 0
	}
	return pace{last: now, repeats: p.repeats + 1}
}

func (p pace) delay() time.Duration {
	const doublings = 8 // beyond this it is the maximum
	if p.repeats-2 >= doublings {
		return paceMax
	}
	return min(paceBase<<(p.repeats-2), paceMax)
}
