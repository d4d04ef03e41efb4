package agent

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	now := time.Date(2026, 11, 29, 11, 0, 0, 0, time.UTC)
	var p pace
	var waits []time.Duration
	for range 14 {
		waits = append(waits, p.wait(now))
		now = now.Add(p.wait(now))
		p = p.took(now)
	}
	ms := time.Millisecond
	want := []time.Duration{0, 0, 250 * ms, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 16000 * ms, 32000 * ms,
		time.Minute, time.Minute, time.Minute, time.Minute}
	for i := range want {
		if waits[i] != want[i] {
			t.Errorf("repeat %d waits %s, want %s", i, waits[i], want[i])
		}
	}
	if now = now.Add(30 * time.Second); p.wait(now) != 30*time.Second {
		t.Errorf("half way through a minute it waits %s", p.wait(now))
	}
	if now = now.Add(paceReset); p.wait(now) != 0 || p.took(now).wait(now) != 0 {
		t.Error("not forgotten after a time of peace")
	}
}
