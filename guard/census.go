package guard

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/notice"
)

// tally is what is counted of one gate over all Nodes.
type tally struct {
	governed int
	// agentless are governed Nodes where no agent DaemonSet can run a pod, by UID.
	agentless map[types.UID]*corev1.Node
	// interval is the longest between two heartbeats of a governed Node.
	interval time.Duration
}

// count makes the tally of a gate. A gate without any agent DaemonSet has no
// agentless Nodes: that is said once, and not of each.
func count(g *gate.Gate, nodes []corev1.Node, sets []appsv1.DaemonSet) tally {
	t := tally{agentless: map[types.UID]*corev1.Node{}}
	for i := range nodes {
		node := &nodes[i]
		if !g.Governs(node) {
			continue
		}
		t.governed++
		in := input{gate: g, node: node, daemonSets: sets}
		if hb, ok := in.heartbeat(); ok {
			t.interval = max(t.interval, notice.LongestInterval(hb.TTL))
		}
		if len(sets) > 0 && !in.agentBelongs() {
			t.agentless[node.UID] = node
		}
	}
	return t
}

// census makes the tallies of all gates.
func (g *Guard) census(ctx context.Context, gates []gate.Gate) (map[string]tally, error) {
	var nodes corev1.NodeList
	if err := g.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("counting Nodes: %w", err)
	}
	tallies := map[string]tally{}
	for i := range gates {
		sets, err := g.daemonSets(ctx, &gates[i])
		if err != nil {
			return nil, err
		}
		t := count(&gates[i], nodes.Items, sets)
		if err := g.keepBound(ctx, &gates[i], sets, t); err != nil {
			return nil, err
		}
		tallies[gates[i].Name] = t
	}
	return tallies, nil
}

// keepBound takes Nodes out on which an agent's pod is bound and may stay. There
// are few Nodes to ask that of.
func (g *Guard) keepBound(ctx context.Context, gt *gate.Gate, sets []appsv1.DaemonSet, t tally) error {
	for uid, node := range t.agentless {
		pods, err := g.pods(ctx, node, gt)
		if err != nil {
			return err
		}
		in := input{gate: gt, node: node, daemonSets: sets, pods: pods, installedAt: g.installedAt(gt)}
		if in.agentBelongs() {
			delete(t.agentless, uid)
		}
	}
	return nil
}
