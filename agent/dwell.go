package agent

import "time"

// State is what the answers of a check amount to.
type State string

const (
	// Unknown: it has not answered yet.
	Unknown State = "unknown"
	// Passing: its last answer was good.
	Passing State = "passing"
	// Wavering: it fails, but not for as long as its dwell. It counts as passing
	// still, yet nothing is opened on it.
	Wavering State = "wavering"
	// Failing: it fails, and counts as failing.
	Failing State = "failing"
)

// States lists all of them.
func States() []State { return []State{Unknown, Passing, Wavering, Failing} }

// answers is what is remembered of a check's answers. The zero value remembers
// none.
type answers struct {
	// reason is the last answer's; nil if it was good.
	reason error
	// at is when it came; zero if none did.
	at time.Time
	// since is when the first of the failing answers came that had no good one
	// after it.
	since time.Time
	// passed tells that there was a good answer.
	passed bool
}

// and remembers one answer more.
func (a answers) and(reason error, at time.Time) answers {
	switch {
	case reason == nil:
		a.passed = true
	case a.at.IsZero() || a.reason == nil:
		a.since = at
	}
	a.reason, a.at = reason, at
	return a
}

// state weighs the answers. Dwell delays the way from passing to failing and no
// other. With open, the Node is open in this boot: a check that fails from the
// start then takes over from the agent that opened it, and dwells as well.
//
// Time counts only as far as answers show it: a check that was not asked has not
// kept failing.
func (a answers) state(dwell time.Duration, open bool) State {
	switch {
	case a.at.IsZero():
		return Unknown
	case a.reason == nil:
		return Passing
	case a.at.Sub(a.since) < dwell && (a.passed || open):
		return Wavering
	}
	return Failing
}
