//go:build linux

package e2e

import (
	"testing"
	"time"

	"github.com/nodegate/nodegate/test/e2e/lab"
)

// scenario is a trouble of one node, which has a stream of new workloads meanwhile.
type scenario struct {
	name string
	play func(*stage)
}

func scenarios() []scenario {
	return []scenario{
		{"fast reboot", fastReboot},
		{"slow reboot", slowReboot},
	}
}

// TestWithout shows the harm of every scenario where there is no nodegate.
func TestWithout(t *testing.T) {
	l := newLab(t, "node-1", "node-2")
	for _, m := range l.Machines {
		newStage(t, l, m, false).powerOn()
	}
	for _, m := range l.Machines {
		newStage(t, l, m, false).calm()
	}
	play(t, l, false)
}

// TestWith shows that there is none with it.
func TestWith(t *testing.T) {
	l := newLab(t, "node-1", "node-2")
	for _, m := range l.Machines {
		newStage(t, l, m, true).powerOn()
	}
	if err := l.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, m := range l.Machines {
		newStage(t, l, m, true).calm()
	}
	play(t, l, true)
}

func play(t *testing.T, l *lab.Lab, gated bool) {
	for _, scene := range scenarios() {
		t.Run(scene.name, func(t *testing.T) {
			s := newStage(t, l, l.Machines[0], gated)
			end := l.Stream(s.ctx, "stream", s.m.Name)
			s.awaitStarts(s.began, 2)
			scene.play(s)
			s.calm()
			s.must(end(s.ctx))
			s.judge(s.outcome())
		})
	}
}

// meshDelay is how long a mesh is in coming, after its node is up.
const meshDelay = 3 * time.Second

// fastReboot: the node is back before the control plane has noticed anything.
func fastReboot(s *stage) {
	s.hold(holdMesh)
	s.powerOff()
	s.powerOn()
	s.meshComesLate()
}

// slowReboot: the control plane takes the node for unreachable meanwhile, and lifts
// that taint when it is back.
func slowReboot(s *stage) {
	s.hold(holdMesh)
	s.powerOff()
	s.awaitNode("to be taken for unreachable", func(n lab.NodeSeen) bool { return !n.Ready })
	s.powerOn()
	s.meshComesLate()
}

// meshComesLate: the node is Ready for some time before its mesh serves.
func (s *stage) meshComesLate() {
	s.Helper()
	s.awaitUp()
	s.awaitClosed()
	if s.gated {
		<-time.After(meshDelay)
	} else {
		s.awaitStarts(time.Now(), 3)
	}
	s.release(holdMesh)
}
