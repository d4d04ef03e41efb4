package guard

import (
	"maps"
	"slices"
	"time"

	"github.com/nodegate/nodegate/internal/notice"
)

// An agent that falls silent is weak evidence, and of many at once it is more
// likely that something is wrong with what we see than with all of them. So the
// breaker lets Expired and AgentAbsent arm at most fleetPercent of a gate's
// governed Nodes within breakerWindow, but fleetMinimum in any case.
const (
	breakerWindow = 10 * time.Minute
	fleetPercent  = 40
	fleetMinimum  = 3

	// The breaker has closed again once it has refused nothing for this long. Within
	// it Nodes that are held back ask again, at multiples of breakerStep, all
	// together: the time until the first arm leaves the window may be too long, for
	// a write may have failed or the fleet have grown.
	breakerQuiet = 30 * time.Second
	breakerStep  = 5 * time.Second
)

// fleetLimit is how many of so many governed Nodes may be armed within the window.
func fleetLimit(governed int) int { return max(fleetMinimum, governed*fleetPercent/100) }

// limited reports whether the breaker counts arms for the reason. The others are
// evidence, and true of every Node that shows it.
func (r Reason) limited() bool { return r == Expired || r == AgentAbsent }

// breaker counts which Nodes of a gate were armed within the window. The zero
// value has counted none.
type breaker struct {
	limit int
	armed map[string]time.Time
	// inherited are arms by guards that led before.
	inherited []arms
	// announced is how many more arms the Lease tells of than there were: a guard
	// that follows in the middle of a burst must not start to count anew.
	announced int
	// tripped since something was refused; refused is when that last was.
	tripped bool
	refused time.Time
}

// arms are a number of arms at about a time.
type arms struct {
	at    time.Time
	count int
}

// take reserves the arming of a Node, and reports whether that counts one more: a
// Node counts once, from when it was last armed. If it would be too many, it
// returns when to ask again.
func (b *breaker) take(node string, now time.Time) (more bool, again time.Time) {
	b.lapse(now)
	_, counted := b.armed[node]
	if !counted && b.count() >= b.limit {
		b.tripped, b.refused = true, now
		return false, now.Add(breakerQuiet / 2).Truncate(breakerStep).Add(breakerStep)
	}
	if b.armed == nil {
		b.armed = map[string]time.Time{}
	}
	b.armed[node] = now
	if !counted {
		b.announced--
	}
	return !counted, time.Time{}
}

// untake undoes a reservation of one more that was not made use of.
func (b *breaker) untake(node string) {
	delete(b.armed, node)
	b.announced++
}

// announce is how many arms to tell of ahead: one write of the Lease for each
// would be in the way of its renewal.
func (b *breaker) announce() {
	b.announced = min(max(1, b.limit/10), b.limit-b.count())
}

// lapse forgets what has left the window. What was counted by a clock that was ahead
// counts from now.
func (b *breaker) lapse(now time.Time) {
	for node, at := range b.armed {
		if at.After(now) {
			b.armed[node] = now
		}
	}
	maps.DeleteFunc(b.armed, func(_ string, at time.Time) bool { return now.Sub(at) >= breakerWindow })
	for i := range b.inherited {
		b.inherited[i].at = earlier(b.inherited[i].at, now)
	}
	b.inherited = slices.DeleteFunc(b.inherited, func(a arms) bool { return now.Sub(a.at) >= breakerWindow })
	b.refused = earlier(b.refused, now)
	if b.tripped && b.count() < b.limit && now.Sub(b.refused) >= breakerQuiet {
		b.tripped = false
	}
}

// count is how many were armed within the window.
func (b *breaker) count() int {
	count := len(b.armed)
	for _, a := range b.inherited {
		count += a.count
	}
	return count
}

// String is what the Lease tells, for people and for the guard that follows:
// armed, limit, tripped, and the arms by the minute in which they were.
func (b *breaker) String() string {
	minutes := map[time.Time]int{}
	var latest time.Time
	for _, at := range b.armed {
		latest = later(latest, at)
		minutes[at.UTC().Truncate(time.Minute)]++
	}
	for _, a := range b.inherited {
		latest = later(latest, a.at)
		minutes[a.at.UTC().Truncate(time.Minute)] += a.count
	}
	if b.announced > 0 && !latest.IsZero() {
		minutes[latest.UTC().Truncate(time.Minute)] += b.announced
	}
	said := notice.Breaker{Armed: b.count() + max(0, b.announced), Limit: b.limit, Tripped: b.tripped}
	for _, at := range slices.SortedFunc(maps.Keys(minutes), time.Time.Compare) {
		said.Window = append(said.Window, notice.Arms{At: at, Count: minutes[at]})
	}
	return said.String()
}

// parseBreaker reads what [breaker.String] wrote. It takes the arms of a minute for
// those of its end.
func parseBreaker(value string, now time.Time) *breaker {
	said := notice.ParseBreaker(value)
	b := &breaker{tripped: said.Tripped}
	if b.tripped {
		b.refused = now
	}
	for _, a := range said.Window {
		if !a.At.After(now) {
			b.inherited = append(b.inherited, arms{at: a.At.Add(time.Minute - time.Second), count: a.Count})
		}
	}
	return b
}
