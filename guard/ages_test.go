package guard

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodegate/nodegate/gate"
)

// TestAges: a gate that is added to an installation adopts no Node that was there
// before it, whether the guard has seen it come or has it from a record.
func TestAges(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	installed, recorded := now.Add(-time.Hour), now.Add(-time.Minute)
	first, second, third := gate.Gate{Name: "first"}, gate.Gate{Name: "second"}, gate.Gate{Name: "third"}
	cfg := &gate.Configuration{Gates: []gate.Gate{first, second}}
	clock := clocktesting.NewFakePassiveClock(now)
	g := &Guard{
		InstalledAt: installed, Added: map[string]time.Time{"second": recorded}, Clock: clock,
		Configuration: func() *gate.Configuration { return cfg },
	}
	g.ages.begin(cfg.Gates, g.Added)
	expect := func(gt *gate.Gate, want time.Time) {
		t.Helper()
		if got := g.installedAt(gt); !got.Equal(want) {
			t.Errorf("gate %s is of %s, want %s", gt.Name, got, want)
		}
	}
	expect(&first, installed)
	expect(&second, recorded)
	cfg = &gate.Configuration{Gates: []gate.Gate{first, second, third}}
	expect(&third, now)
	clock.SetTime(now.Add(time.Hour))
	expect(&third, now)
	expect(&first, installed)
	g.ages.forget("third")
	expect(&third, now.Add(time.Hour))
	if at := (&Guard{Clock: clock}).installedAt(&first); !at.IsZero() {
		t.Errorf("a guard on its own is of %s", at)
	}
}
