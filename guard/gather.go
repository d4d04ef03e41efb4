package guard

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
)

// gather collects what a decision rests on, and notes whether the agent is
// missing.
func (g *Guard) gather(ctx context.Context, node *corev1.Node, gt *gate.Gate, now time.Time) (input, error) {
	in := input{gate: gt, node: node, now: now, installedAt: g.installedAt(gt)}
	var err error
	if in.daemonSets, err = g.daemonSets(ctx, gt); err != nil {
		return input{}, err
	}
	if in.pods, err = g.pods(ctx, node, gt); err != nil {
		return input{}, err
	}
	in.trouble = g.memory.look(in)
	return in, nil
}

// daemonSets lists those that create the gate's agent pods, which one that is being
// deleted does not, and says so if there are none: then nothing is armed for an
// agent's silence or absence.
func (g *Guard) daemonSets(ctx context.Context, gt *gate.Gate) ([]appsv1.DaemonSet, error) {
	var list appsv1.DaemonSetList
	if err := g.Client.List(ctx, &list, client.InNamespace(gt.Agent.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing agent DaemonSets in %q: %w", gt.Agent.Namespace, err)
	}
	sets := placement.DaemonSets(gt, list.Items)
	g.noteDaemonSets(gt, len(sets))
	return sets, nil
}

// pods lists the gate's agent pods that are bound to the Node.
func (g *Guard) pods(ctx context.Context, node *corev1.Node, gt *gate.Gate) ([]corev1.Pod, error) {
	options := []client.ListOption{
		client.InNamespace(gt.Agent.Namespace),
		client.MatchingLabels(gt.Agent.PodLabels),
		client.UnsafeDisableDeepCopy,
	}
	if g.indexed {
		options = append(options, client.MatchingFields{podNodeName: node.Name})
	}
	var list corev1.PodList
	if err := g.Client.List(ctx, &list, options...); err != nil {
		return nil, fmt.Errorf("listing agent pods of node %q: %w", node.Name, err)
	}
	var pods []corev1.Pod
	for _, pod := range list.Items {
		if pod.Spec.NodeName == node.Name {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// silence holds the gates that have no agent DaemonSet, so that it is said once.
// The zero value is ready for use.
type silence struct {
	mu    sync.Mutex
	gates map[string]bool
}

// changed notes whether the gate has none, and reports whether that is news. A
// gate that has one from the start is not.
func (s *silence) changed(g *gate.Gate, none bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.gates[g.Name] != none
	if s.gates == nil {
		s.gates = map[string]bool{}
	}
	s.gates[g.Name] = none
	return news
}

// forget drops a gate that is not configured any more.
func (s *silence) forget(gateName string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.gates, gateName)
}

// noteDaemonSets says when the gate's last agent DaemonSet goes, and when one
// comes.
func (g *Guard) noteDaemonSets(gt *gate.Gate, count int) {
	none := count == 0
	g.Metrics.daemonSetMissing(gt, none)
	if !g.silent.changed(gt, none) {
		return
	}
	if none {
		g.log().Warn("No agent DaemonSet: Nodes are not armed for Expired or AgentAbsent",
			"gate", gt.Name, "namespace", gt.Agent.Namespace, "podLabels", gt.Agent.PodLabels)
		g.tellOfFleet(corev1.EventTypeWarning, "NoAgentDaemonSet", "Search/"+gt.Name, fmt.Sprintf(
			"Gate %q: no DaemonSet in namespace %s creates agent pods, so that no Node is armed for Expired or AgentAbsent", gt.Name, gt.Agent.Namespace))
		return
	}
	g.log().Info("Agent DaemonSet found", "gate", gt.Name, "namespace", gt.Agent.Namespace)
}
