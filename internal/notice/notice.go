// Package notice is what the guard says of itself in annotations of its Lease, for
// the guard that follows it and for people.
package notice

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodegate/nodegate/gate"
)

// Breaker tells how many Nodes of a gate were armed lately for their agent's
// silence.
type Breaker struct {
	Armed, Limit int
	// Tripped: it is too many to go on.
	Tripped bool
	// Window are the arms by the minute in which they were, oldest first.
	Window []Arms
}

// Arms are a number of arms within the minute that begins at At.
type Arms struct {
	At    time.Time
	Count int
}

// String is what the Lease says.
func (b Breaker) String() string {
	window := make([]string, len(b.Window))
	for i, arms := range b.Window {
		window[i] = arms.At.UTC().Format(gate.TimeLayout) + "/" + strconv.Itoa(arms.Count)
	}
	return fmt.Sprintf("armed=%d limit=%d tripped=%t window=%s", b.Armed, b.Limit, b.Tripped, strings.Join(window, ","))
}

// ParseBreaker reads what [Breaker.String] wrote. Of what it cannot read it makes
// nothing: whoever may write the Lease may as well delete it.
func ParseBreaker(value string) Breaker {
	var b Breaker
	for field := range strings.FieldsSeq(value) {
		switch key, value, _ := strings.Cut(field, "="); key {
		case "armed":
			b.Armed = parseCount(value)
		case "limit":
			b.Limit = parseCount(value)
		case "tripped":
			b.Tripped = value == "true"
		case "window":
			b.Window = parseWindow(value)
		}
	}
	return b
}

func parseWindow(value string) []Arms {
	var window []Arms
	for entry := range strings.SplitSeq(value, ",") {
		minute, number, _ := strings.Cut(entry, "/")
		at, err := time.Parse(gate.TimeLayout, minute)
		if count := parseCount(number); err == nil && count > 0 {
			window = append(window, Arms{At: at, Count: count})
		}
	}
	slices.SortFunc(window, func(a, b Arms) int { return a.At.Compare(b.At) })
	return window
}

// parseCount is 0 for what is no number of Nodes.
func parseCount(value string) int {
	count, err := strconv.ParseUint(value, 10, 24)
	if err != nil {
		return 0
	}
	return int(count)
}

// Suspension tells until when nothing is armed for an agent's silence, and why.
type Suspension struct {
	Until  time.Time
	Reason string
}

// LongestInterval is the longest that an agent may let pass from a heartbeat with
// this ttl to the next: a third of it, and up to a tenth more by which agents spread
// their heartbeats.
func LongestInterval(ttl time.Duration) time.Duration { return ttl/3 + ttl/30 }

// Holds reports whether it is in force. It lasts until every agent has had the time
// to write: one that would last longer than any can was not begun by this clock, but
// by one that was ahead, or by hand.
func (s Suspension) Holds(now time.Time) bool {
	left := s.Until.Sub(now)
	return left > 0 && left <= LongestInterval(gate.MaxTTL)
}

// String is what the Lease says.
func (s Suspension) String() string {
	return "until=" + s.Until.UTC().Format(gate.TimeLayout) + " reason=" + s.Reason
}

// ParseSuspension reads what [Suspension.String] wrote; anything else is none.
func ParseSuspension(value string) Suspension {
	until, reason, ok := strings.Cut(strings.TrimPrefix(value, "until="), " reason=")
	at, err := time.Parse(gate.TimeLayout, until)
	if !ok || err != nil {
		return Suspension{}
	}
	return Suspension{Until: at, Reason: reason}
}
