//go:build unix

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/world"
)

const (
	nodeName = "worker"
	podName  = "workload"
)

// story is one node's life.
type story struct {
	*narrator
	world *world.World
	gate  *gate.Gate
	node  *world.Node
	// told is how many of the node's states were looked at.
	told int
}

func newStory(w *world.World, tell *narrator) *story {
	return &story{narrator: tell, world: w, gate: w.Gate}
}

// play plays the steps; the first that differs from what it says ends the story.
func (s *story) play(ctx context.Context) error {
	var err error
	if s.node, err = s.world.NewNode(nodeName); err != nil {
		return err
	}
	for _, step := range []struct {
		title string
		play  func(context.Context) error
	}{
		{"A node is born armed, though its kubelet registers it without any taint", s.isBornArmed},
		{"A workload stays Pending", s.staysPending},
		{"Once what the agent tests works, it opens the gate, and the workload is bound", s.opens},
		{"Another CNI takes the network over, without the gated plugin: the agent's own heartbeat arms", s.losesChain},
		{"A third party removes the taint while no agent runs: nothing changes", s.isUntainted},
		{"The network is repaired and the agent is back: it opens the gate", s.isRepaired},
		{"The agent crashes and does not come back: the guard arms after its grace", s.losesAgent},
		{"A third party removes the taint under an old heartbeat: nothing changes", s.isUntaintedLate},
		{"The agent is back and opens the gate", s.reopens},
		{"A slow reboot, without guard: the control plane's own write that ends 'unreachable' arms", s.rebootsSlowly},
		{"The agent finds the new boot and opens the gate", s.opensInNewBoot},
		{"A fast reboot, never NotReady: no write could arm, so the guard does", s.rebootsFast},
		{"The agent finds the new boot and opens the gate", s.opensInNewBoot},
	} {
		s.begin(step.title)
		if err := step.play(ctx); err != nil {
			s.tell(s.node.History.Len())
			return fmt.Errorf("step %d, %q, differs: %w", s.step, step.title, err)
		}
	}
	s.table()
	return nil
}

// await waits for a state, the last one told or a later, tells all up to it, and
// returns it with its index.
func (s *story) await(ctx context.Context, what string, condition func(*corev1.Node) bool) (int, world.Seen, error) {
	i, seen, err := s.node.History.Await(ctx, max(0, s.told-1), what, condition)
	if err != nil {
		return 0, seen, err
	}
	s.tell(i + 1)
	return i, seen, nil
}

// tell tells the states up to a number of them.
func (s *story) tell(upTo int) {
	if upTo > s.told {
		s.shows(s.gate, s.node.History.Since(s.told)[:upTo-s.told])
		s.told = upTo
	}
}

// holds tells what a step has shown, after all states of it.
func (s *story) holds(what string) {
	s.tell(s.node.History.Len())
	s.narrator.holds(what)
}

// state is the i-th.
func (s *story) state(i int) *corev1.Node { return s.node.History.Since(i)[0].Node }

func (s *story) heartbeat(node *corev1.Node) (gate.Heartbeat, bool) {
	hb, err := gate.ParseHeartbeat(node.Annotations[s.gate.HeartbeatAnnotation()])
	return hb, err == nil
}

func (s *story) saysNotReady(node *corev1.Node) bool {
	hb, ok := s.heartbeat(node)
	return ok && !hb.Ready
}
