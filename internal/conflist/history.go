package conflist

import (
	"fmt"
	"io/fs"
	"slices"
	"time"
)

const (
	// settle is how long a list must stay as it is before it is mended: its writer
	// may not be done.
	settle = 50 * time.Millisecond

	// maxStrips within stripWindow count as failing, though each was mended: between
	// a strip and its repair pods start without the plugin.
	maxStrips   = 3
	stripWindow = 5 * time.Minute

	// fightBase, doubling to fightMax, is how long repairs are held back from then on.
	fightBase = 5 * time.Second
	fightMax  = time.Minute

	// failedPause is the time from a repair that failed to the next.
	failedPause = 5 * time.Second
)

// history is what was seen of a list over time, and what follows from it for when
// it may be written. It does no IO.
type history struct {
	// span is what the list has been since.
	span Span
	// chained: the plugin was, when its list was last of use.
	chained bool
	// strips are the times when it was taken out, within the window.
	strips []time.Time
	// state is what is to be mended, since when it is so.
	state state
	since time.Time
	// hold: nothing is written before.
	hold time.Time
	// fault is why the last repair of this state failed.
	fault error
}

// Span is a time in which one thing is so, as far as was seen: that what is loaded
// runs the plugin, or that it does not.
type Span struct {
	// Runs: the plugin is in what is loaded, behind the main plugin.
	Runs bool
	// Since is when that began.
	Since time.Time
	// seen: there was a reading.
	seen bool
}

// then is the span after a reading. A list that is right when it is first read has
// been so since it was written, unless that is said to be yet to come: a clock was
// turned back since.
func (s Span) then(r Reading, now time.Time) Span {
	runs := r.Verdict == OK || r.Verdict == Update || r.Verdict == Dedupe
	switch {
	case s.seen && s.Runs == runs:
		return s
	case s.seen || !runs:
		return Span{runs, now, true}
	}
	written := r.Active.content.info.ModTime()
	if written.After(now) {
		written = time.Time{}
	}
	return Span{runs, written, true}
}

// state tells one list that is to be mended from another.
type state struct {
	verdict Verdict
	path    string
	info    fs.FileInfo
}

func (s state) same(other state) bool {
	if s.info == nil || other.info == nil {
		return s.info == nil && other.info == nil
	}
	return s.verdict == other.verdict && s.path == other.path && sameFile(s.info, other.info)
}

// saw takes a reading in, and reports whether the plugin was taken out since the
// one before.
func (h *history) saw(r Reading, now time.Time) (stripped bool) {
	h.strips = slices.DeleteFunc(h.strips, func(at time.Time) bool { return now.Sub(at) >= stripWindow })
	var is state
	if r.Repairable() {
		is = state{r.Verdict, r.Active.Path, r.Active.content.info}
	}
	if !is.same(h.state) {
		h.state, h.since, h.fault = is, now, nil
	}
	switch {
	case r.Verdict == OK:
		h.chained = true
	case r.Repairable() && r.Verdict != Update && h.chained:
		h.chained = false
		h.strips = append(h.strips, now)
		h.hold = later(h.hold, now.Add(backoff(len(h.strips))))
		return true
	}
	return false
}

// failed takes in that a repair did.
func (h *history) failed(fault error, now time.Time) {
	h.fault = fault
	h.hold = later(h.hold, now.Add(failedPause))
}

// wait is how long what was seen last is not to be mended yet.
func (h *history) wait(now time.Time) time.Duration {
	return max(0, h.since.Add(settle).Sub(now), h.hold.Sub(now))
}

// contested reports that somebody keeps taking the plugin out.
func (h *history) contested() error {
	if len(h.strips) < maxStrips {
		return nil
	}
	return fmt.Errorf("taken out %d times or more within %s, another writer does it again and again", maxStrips, stripWindow)
}

// backoff holds the repair after the nth strip back. The first ones are mended at
// once.
func backoff(n int) time.Duration {
	if n <= maxStrips {
		return 0
	}
	return min(fightBase<<min(n-maxStrips-1, 10), fightMax)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
