// Package apiclock is a clock that shows the API server's time.
//
// A node's own clock may be days off, or start in 1970 after a reboot. The Date
// header of every answer says what time it is at the API server, to the second;
// the moments at which the request was sent and its answer came bound what that
// says about now. The clock keeps the intersection of these bounds, which
// answers narrow to about one round trip. It rests on the monotonic clock, so
// steps of the local wall clock do not move it, and on no single answer, so that
// a proxy's cached or invented Date does not either. Until a first answer it
// shows local time.
package apiclock

import (
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// resolution is that of a Date header, which cuts off fractions.
	resolution = time.Second

	// maxDrift is how fast two clocks may part: the most that NTP slews a Linux
	// clock. Bounds are widened by it as they age.
	maxDrift = 500e-6

	// outvoted is how many answers in a row must contradict what is known, and
	// agree with each other, to be believed instead: the API server's clock was
	// set, or this machine slept.
	outvoted = 3
)

// Clock shows the API server's time as learnt from the answers that pass through
// [Clock.Wrap]. It is safe for concurrent use.
type Clock struct {
	wall    func() time.Time
	elapsed func() time.Duration

	mu sync.Mutex
	// known bounds the API server's time; rival bounds what the last answers say
	// that contradict it.
	known, rival bounds
}

var _ clock.PassiveClock = (*Clock)(nil)

// New returns a clock that has not learnt anything yet.
func New() *Clock {
	start := time.Now()
	return On(time.Now, func() time.Duration { return time.Since(start) })
}

// On is [New] on other clocks than this machine's: what its wall shows, and the
// time elapsed, which nobody sets.
func On(wall func() time.Time, elapsed func() time.Duration) *Clock {
	return &Clock{wall: wall, elapsed: elapsed}
}

// Now is the API server's time, or local time if no answer was seen yet.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known.answers == 0 {
		return c.wall()
	}
	return c.known.middle(c.elapsed())
}

// Since is the time that has passed on the API server since t.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Offset is how far the API server's clock is ahead of the local one. The
// second result is false if no answer was seen yet.
func (c *Clock) Offset() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known.answers == 0 {
		return 0, false
	}
	return c.known.middle(c.elapsed()).Sub(c.wall().Round(0)), true
}

// observe learns from one answer. It was dated after the request was sent and
// before the answer came, both readings of the monotonic clock: when it came, the
// API server's clock showed no less than the date, and no more than the second's
// end and the whole round trip later.
func (c *Clock) observe(sent, came time.Duration, date time.Time) {
	answer := bounds{
		earliest: date,
		latest:   date.Add(resolution + came - sent),
		at:       came,
		answers:  1,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if both, ok := c.known.meet(answer); ok {
		c.known, c.rival = both, bounds{}
		return
	}
	both, ok := c.rival.meet(answer)
	if !ok {
		both = answer
	}
	c.rival = both
	if c.rival.answers >= outvoted {
		c.known, c.rival = c.rival, bounds{}
	}
}

// bounds say between which times the API server's clock was when the monotonic
// clock read at. The zero value says nothing.
type bounds struct {
	earliest, latest time.Time
	at               time.Duration
	answers          int
}

// meet is what both say together, as of the later reading; false if they cannot
// both be right.
func (b bounds) meet(other bounds) (bounds, bool) {
	if b.answers == 0 {
		return other, true
	}
	at := max(b.at, other.at)
	b, other = b.aged(at), other.aged(at)
	if other.earliest.After(b.earliest) {
		b.earliest = other.earliest
	}
	if other.latest.Before(b.latest) {
		b.latest = other.latest
	}
	b.answers += other.answers
	return b, !b.earliest.After(b.latest)
}

// aged moves the bounds to a later reading of the monotonic clock and widens
// them by what the clocks may have parted since.
func (b bounds) aged(at time.Duration) bounds {
	age := at - b.at
	drift := time.Duration(float64(age) * maxDrift)
	b.earliest = b.earliest.Add(age - drift)
	b.latest = b.latest.Add(age + drift)
	b.at = at
	return b
}

func (b bounds) middle(at time.Duration) time.Time {
	b = b.aged(at)
	return b.earliest.Add(b.latest.Sub(b.earliest) / 2)
}
