//go:build linux && e2e

package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/e2e/lab"
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
		if harmed, _ := s.rebootUnderPods(func(pods []types.UID) { s.boundStarts(pods) }); harmed == 0 {
			t.Error("nothing was harmed: the scenario is void")
		}
	})
	t.Run("with nodegate", func(t *testing.T) {
		if err := l.Install(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := newStage(t, l, l.Machines[0], true)
		if harmed, _ := s.rebootUnderPods(func(pods []types.UID) { s.boundStarts(pods) }); harmed == 0 {
			t.Error("nothing was harmed, though nothing holds bound pods back: the next scenario would be void")
		}
	})
	t.Run("with nodegate-cni", func(t *testing.T) {
		if err := l.InstallHolding(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := newStage(t, l, l.Machines[0], true)
		s.must(s.AwaitRoll(s.ctx, "daemonset", gate.AgentAccount))
		var waited []time.Duration
		for range 3 {
			harmed, took := s.rebootUnderPods(func([]types.UID) { <-time.After(awhile) })
			if harmed > 0 {
				t.Errorf("%d of %d bound pods started without their mesh: %s", harmed, boundPods, s.describe())
			}
			waited = append(waited, took...)
		}
		t.Logf("gate open -> a bound pod starts: %s", quantiles(waited))
		// The plugin waits for some time, then gives up, and the kubelet tries again.
		harmed, _ := s.rebootUnderPods(func(pods []types.UID) {
			s.awaitEvent(pods[0], "FailedCreatePodSandBox", "this node is not ready for pods")
		})
		if harmed > 0 {
			t.Errorf("%d of %d bound pods started without their mesh, after the plugin had given up: %s", harmed, boundPods, s.describe())
		}
	})
}

// rebootUnderPods reboots a machine that has pods, with a mesh that comes when
// something was waited for, and returns how many of them started without it, and for
// those that did not how long after the gate's opening they started.
func (s *stage) rebootUnderPods(wait func([]types.UID)) (harmed int, waited []time.Duration) {
	s.Helper()
	s.calm()
	// A network that writes its list anew takes whatever holds pods out of it.
	s.hold(record.KeepList)
	defer s.release(record.KeepList)
	pods := s.bindPods(boundPods)
	s.hold(record.HoldMesh)
	s.powerOff()
	s.powerOn()
	s.awaitUp()
	s.awaitClosed()
	wait(pods)
	s.release(record.HoldMesh)
	if s.gated {
		s.awaitOpen()
	}
	for _, w := range s.boundStarts(pods) {
		if !w.Meshed {
			harmed++
		} else if at, ok := s.openedAt(); ok {
			waited = append(waited, w.Time.Sub(at))
		}
	}
	s.Logf("%d of %d bound pods started without their mesh", harmed, len(pods))
	s.must(s.Clear(s.ctx, s.m.Name))
	return harmed, waited
}

// bindPods has pods run that stay.
func (s *stage) bindPods(count int) []types.UID {
	s.Helper()
	since := time.Now()
	var pods []types.UID
	for range count {
		pod, err := s.Workload(s.ctx, "bound", s.m.Name)
		s.must(err)
		pods = append(pods, pod.UID)
	}
	s.awaitStarts(since, count)
	return pods
}

// boundStarts waits until pods have started in the last boot, and returns how.
func (s *stage) boundStarts(pods []types.UID) []lab.Started {
	s.Helper()
	var started []lab.Started
	s.must(s.Await(s.ctx, "bound pods to start again", func(context.Context) (bool, error) {
		all, err := s.Starts(s.m, s.m.Booted())
		started = slices.DeleteFunc(all, func(w lab.Started) bool { return !slices.Contains(pods, types.UID(w.UID)) })
		return len(started) >= len(pods), err
	}))
	return started
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
