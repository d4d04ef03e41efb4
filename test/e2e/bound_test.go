//go:build linux && e2e

package e2e

import (
	"testing"
	"time"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/e2e/record"
)

// boundPods are on the node when it reboots. No taint keeps a kubelet from starting
// them again.
const boundPods = 4

// TestNodes_BoundPods: of pods that are bound to a node when it reboots, those that
// nodegate-cni holds back start with their mesh, and no others.
func TestNodes_BoundPods(t *testing.T) {
	l := newLab(t, "node-1", "node-2")
	for _, m := range l.Machines {
		newStage(t, l, m, false).powerOn()
	}
	for _, m := range l.Machines {
		newStage(t, l, m, false).calm()
	}
	t.Run("without nodegate", func(t *testing.T) {
		s := newStage(t, l, l.Machines[0], false)
		if harmed, _ := s.rebootUnderPods(); harmed == 0 {
			t.Error("nothing was harmed: the scenario is void")
		}
	})
	t.Run("with nodegate", func(t *testing.T) {
		if err := l.Install(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := newStage(t, l, l.Machines[0], true)
		if harmed, _ := s.rebootUnderPods(); harmed == 0 {
			t.Error("nothing was harmed, though nothing holds bound pods back: the next scenario would be void")
		}
	})
	t.Run("with nodegate-cni", func(t *testing.T) {
		if err := l.InstallHolding(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := newStage(t, l, l.Machines[0], true)
		s.must(s.AwaitRoll(s.ctx, "daemonset", gate.AgentAccount))
		s.holds = true
		var waited []time.Duration
		for range 3 {
			harmed, took := s.rebootUnderPods()
			if harmed > 0 {
				t.Errorf("%d of %d bound pods started without their mesh: %s", harmed, boundPods, s.describe())
			}
			waited = append(waited, took...)
		}
		t.Logf("gate open -> a bound pod starts: %s", quantiles(waited))
	})
}

// rebootUnderPods reboots a machine that has pods, with a mesh that comes late, and
// returns how many of them started without it, and for those that did not how long
// after the gate's opening they started.
func (s *stage) rebootUnderPods() (harmed int, waited []time.Duration) {
	s.Helper()
	s.calm()
	// A network that writes its list anew takes whatever holds pods out of it.
	s.hold(record.KeepList)
	defer s.release(record.KeepList)
	began := time.Now()
	for range boundPods {
		_, err := s.Workload(s.ctx, "bound", s.m.Name)
		s.must(err)
	}
	s.awaitStarts(began, boundPods)
	s.hold(record.HoldMesh)
	s.powerOff()
	booted := time.Now()
	s.powerOn()
	s.awaitUp()
	s.awaitClosed()
	if s.holds {
		<-time.After(awhile)
	} else {
		s.awaitStarts(booted, boundPods)
	}
	s.release(record.HoldMesh)
	s.awaitStarts(booted, boundPods)
	if s.gated {
		s.awaitOpen()
	}
	starts, err := s.Starts(s.m, booted)
	s.must(err)
	for _, w := range starts {
		if !w.Meshed {
			harmed++
		} else if at, ok := s.openedAt(); ok {
			waited = append(waited, w.Time.Sub(at))
		}
	}
	s.Logf("%d of %d bound pods started without their mesh", harmed, len(starts))
	s.must(s.Clear(s.ctx, s.m.Name))
	return harmed, waited
}

// openedAt is when the gate was opened in the last boot.
func (s *stage) openedAt() (time.Time, bool) {
	for _, n := range bootStates(s.Seen.Node(s.m.Name), s.m) {
		if opened(n) {
			return n.At, true
		}
	}
	return time.Time{}, false
}
