package guard

import (
	"fmt"
	"testing"
	"time"

	"github.com/nodegate/nodegate/internal/notice"
)

func TestFleetLimit(t *testing.T) {
	for governed, want := range map[int]int{0: 3, 1: 3, 7: 3, 9: 3, 10: 4, 100: 40, 5000: 2000} {
		if got := fleetLimit(governed); got != want {
			t.Errorf("of %d governed Nodes %d may be armed, want %d", governed, got, want)
		}
	}
}

// takeMany asks for a number of Nodes and returns how many of them it got.
func takeMany(b *breaker, prefix string, nodes int, now time.Time) int {
	got := 0
	for i := range nodes {
		if _, again := b.take(fmt.Sprintf("%s-%d", prefix, i), now); again.IsZero() {
			got++
		}
	}
	return got
}

func TestBreaker_StopsAndResumes(t *testing.T) {
	b := &breaker{limit: 40}
	if got := takeMany(b, "a", 100, now); got != 40 || !b.tripped {
		t.Errorf("armed %d (tripped: %t), want 40", got, b.tripped)
	}
	if got := takeMany(b, "a", 40, now.Add(time.Minute)); got != 40 {
		t.Errorf("of those that were counted already %d may be armed again, want 40", got)
	}
	b.lapse(now.Add(2 * time.Minute))
	if !b.tripped {
		t.Error("has closed while more would be too many")
	}
	takeMany(b, "b", 1, now.Add(breakerWindow+time.Minute-time.Second))
	if b.lapse(now.Add(breakerWindow + time.Minute)); !b.tripped || b.count() != 0 {
		t.Error("has closed before who waits has asked again")
	}
	again := now.Add(breakerWindow + 2*time.Minute)
	if got := takeMany(b, "b", 100, again); got != 40 {
		t.Errorf("armed %d when the first had left the window, want 40", got)
	}
	b.lapse(again.Add(2 * breakerWindow))
	if b.tripped || b.count() != 0 {
		t.Errorf("long after: tripped %t, counts %d", b.tripped, b.count())
	}
}

func TestBreaker_WhatWasNotDoneDoesNotCount(t *testing.T) {
	b := &breaker{limit: 3}
	for i := range 10 {
		name := fmt.Sprint(i)
		if _, again := b.take(name, now); !again.IsZero() {
			t.Fatalf("refused number %d", i)
		}
		b.untake(name)
	}
}

// TestBreaker_CountsTheLastArm: a Node that is armed again within the window counts
// from then on, or twice as many would be armed around the end of the window.
func TestBreaker_CountsTheLastArm(t *testing.T) {
	b := &breaker{limit: 3}
	takeMany(b, "a", 3, now)
	takeMany(b, "a", 3, now.Add(breakerWindow-time.Second))
	if got := takeMany(b, "b", 3, now.Add(breakerWindow)); got != 0 {
		t.Errorf("armed %d others a second after three", got)
	}
	if got := takeMany(b, "b", 3, now.Add(2*breakerWindow-time.Second)); got != 3 {
		t.Errorf("armed %d a window later, want 3", got)
	}
}

// TestBreaker_WhoWaitsAsksAgain: what holds a Node back may be over long before the
// window is: a write failed, or the fleet has grown.
func TestBreaker_WhoWaitsAsksAgain(t *testing.T) {
	b := &breaker{limit: 3}
	takeMany(b, "a", 3, now)
	_, again := b.take("b", now)
	if again.Before(now.Add(breakerStep)) || again.After(now.Add(breakerQuiet)) {
		t.Errorf("asks again after %s", again.Sub(now))
	}
	b.untake("a-1")
	if _, again := b.take("b", again); !again.IsZero() {
		t.Error("refused though one of three was given back")
	}
}

// TestBreaker_AClockThatWasAhead: what was counted by it is over a window after it is
// set right, not a day.
func TestBreaker_AClockThatWasAhead(t *testing.T) {
	b := &breaker{limit: 3, inherited: []arms{{at: now.Add(24 * time.Hour), count: 1}}}
	takeMany(b, "a", 5, now.Add(24*time.Hour))
	if b.lapse(now); b.count() != 3 {
		t.Errorf("counts %d, want 3", b.count())
	}
	b.lapse(now.Add(breakerWindow))
	if b.tripped || b.count() != 0 {
		t.Errorf("a window later: tripped %t, counts %d", b.tripped, b.count())
	}
}

// TestBreaker_SurvivesItsGuard: whenever a guard ends, the one that follows knows
// of every arm, and of few that were not made.
func TestBreaker_SurvivesItsGuard(t *testing.T) {
	const limit = 200
	for _, done := range []int{1, 7, 20, 21, 150, limit} {
		b := &breaker{limit: limit}
		published, writes := "", 0
		at := now
		for i := range done {
			at = now.Add(time.Duration(i) * time.Second)
			b.take(fmt.Sprint(i), at)
			if b.announced < 0 {
				b.announce()
				published, writes = b.String(), writes+1
			}
		}
		next := parseBreaker(published, at)
		if got := next.count(); got < done || got > done+limit/10 {
			t.Errorf("after %d arms the next guard counts %d", done, got)
		}
		if writes > 11 {
			t.Errorf("%d arms took %d writes", done, writes)
		}
		if next.count() > limit {
			t.Errorf("after %d arms the Lease tells of %d, more than there may be", done, next.count())
		}
		next.limit = limit
		if got := takeMany(next, "next", limit, at); got+done > limit {
			t.Errorf("two guards armed %d within the window, want %d at most", got+done, limit)
		}
	}
}

func TestBreaker_ReadsBack(t *testing.T) {
	b := &breaker{limit: 3}
	takeMany(b, "a", 5, now)
	const want = "armed=3 limit=3 tripped=true window=2026-11-29T11:02:00Z/3"
	if got := b.String(); got != want {
		t.Errorf("tells %q, want %q", got, want)
	}
	next := parseBreaker(want, now)
	if next.count() != 3 || !next.tripped {
		t.Errorf("reads %+v", next)
	}
	if next.lapse(now.Add(breakerWindow - time.Second)); next.count() != 3 {
		t.Error("forgets arms of this minute before they have left the window")
	}
	for _, nonsense := range []string{
		"", "x", "window=", "window=,,/,x/1", "window=2026-11-29T11:02:00Z/-1", "window=2027-11-29T11:02:00Z/3", "window=2026-11-29T11:02:00Z/99999999999",
	} {
		if got := parseBreaker(nonsense, now).count(); got != 0 {
			t.Errorf("reads %d arms from %q", got, nonsense)
		}
	}
}

func TestSuspend(t *testing.T) {
	const interval = 20 * time.Second
	before := notice.Suspension{Until: now.Add(5 * time.Second), Reason: "before"}
	over := notice.Suspension{Until: now, Reason: "over"}
	tests := map[string]struct {
		vacant    time.Duration
		led       bool
		published notice.Suspension
		want      time.Duration
	}{
		"a leader follows at once":                          {vacant: 4 * time.Second, led: true},
		"nobody led for as long as is allowed":              {vacant: maxVacancy, led: true},
		"nobody led for longer":                             {vacant: maxVacancy + 1, led: true, want: interval},
		"nobody led for a day":                              {vacant: 24 * time.Hour, led: true, want: interval},
		"nobody ever led":                                   {want: interval},
		"a suspension goes on under the next leader":        {vacant: time.Second, led: true, published: before, want: 5 * time.Second},
		"one that is over does not":                         {vacant: time.Second, led: true, published: over},
		"a new one does not end with that of before":        {vacant: time.Minute, led: true, published: before, want: interval},
		"what no guard has told":                            {vacant: time.Second, led: true, published: notice.Suspension{Until: now.Add(24 * time.Hour)}},
		"the renewal is dated ahead by a clock that is off": {vacant: -time.Hour, led: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := suspend(tc.vacant, tc.led, interval, tc.published, now)
			if d := got.Until.Sub(now); tc.want != 0 && d != tc.want || tc.want == 0 && got.Until.After(now) {
				t.Errorf("suspended for %s, want %s", d, tc.want)
			}
			if got.Until.IsZero() {
				return
			}
			if back := notice.ParseSuspension(got.String()); !back.Until.Equal(got.Until) || back.Reason != got.Reason {
				t.Errorf("reads %+v from %q", back, got)
			}
		})
	}
	for _, nonsense := range []string{"", "until=", "until=x reason=y", "2026-11-29T11:02:53Z"} {
		if got := notice.ParseSuspension(nonsense); !got.Until.IsZero() {
			t.Errorf("reads %+v from %q", got, nonsense)
		}
	}
}
