package report

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
)

// next is what to do: first what the verdict calls for, then the agent's pod, then the
// way around.
func (x *index) next(node *corev1.Node, g *gate.Gate, row Row) []Step {
	if row.State == Open && !row.AgainstTheRules {
		if row.Agent != nil && row.Agent.Belongs && !row.Agent.Ready {
			return x.ofAgent(node, g, row)
		}
		return nil
	}
	if row.Verdict == gate.Bypassed {
		return []Step{{Why: "Remove the taint again.", Command: untaint(node, g)}}
	}
	var steps []Step
	if row.AgainstTheRules && x.Config.Mode == gate.ModeEnforce {
		steps = append(steps, Step{
			Why:     "See whether the guard runs, and what it says.",
			Command: fmt.Sprintf("kubectl -n %s logs -l app.kubernetes.io/name=%s --tail 50", gate.Namespace, gate.ControllerAccount),
		})
	}
	steps = append(steps, x.ofVerdict(node, g, row)...)
	steps = append(steps, ofNode(node)...)
	steps = append(steps, x.ofAgent(node, g, row)...)
	if row.State == Armed {
		bypass := fmt.Sprintf("kubectl nodegate bypass %s --for 1h --reason TEXT", node.Name)
		if len(x.Config.Gates) > 1 {
			bypass += " --gate " + g.Name
		}
		steps = append(steps, Step{Why: "If the node must take pods before that, open it for a while; they will not have what the agent gives them.", Command: bypass})
	}
	return steps
}

func (x *index) ofVerdict(node *corev1.Node, g *gate.Gate, row Row) []Step {
	switch row.Verdict {
	case gate.Malformed:
		return []Step{{
			Why:     "Something other than this version's agent wrote the heartbeat, and it needed the right to administer gates. Remove it; the agent writes its own.",
			Command: fmt.Sprintf("kubectl annotate node %s %s-", node.Name, g.HeartbeatAnnotation()),
		}}
	case gate.OtherNode:
		return []Step{{Why: "The Node was deleted and created again, or restored. A running agent sees that and writes anew within seconds."}}
	case gate.OtherBoot:
		if !gate.ValidBootID(node.Status.NodeInfo.BootID) {
			return []Step{{
				Why:     "The Node shows no boot id, without which no agent can open it. Its kubelet reads it from /proc/sys/kernel/random/boot_id. See what the kubelet reports.",
				Command: fmt.Sprintf("kubectl get node %s -o jsonpath='{.status.nodeInfo}'", node.Name),
			}}
		}
		return []Step{{Why: "The node has rebooted, and its agent has not written since. Give it the time to start; where it runs already, see what it says."}}
	case gate.FromFuture:
		return []Step{{
			Why:     "The heartbeat is ahead of the API server's clock. If it is so by much, API servers' clocks differ, or somebody wrote it by hand. See whether it is still so.",
			Command: "kubectl nodegate heartbeat " + node.Name,
		}}
	}
	return nil
}

// ofNode: where the kubelet is not well, the agent cannot be.
func ofNode(node *corev1.Node) []Step {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return []Step{{
				Why:     fmt.Sprintf("The node itself is not Ready since %s (%s). See why: an agent that cannot run, or cannot write, opens nothing.", stamp(c.LastTransitionTime.Time), c.Reason),
				Command: "kubectl describe node " + node.Name,
			}}
		}
	}
	return nil
}

// ofAgent leads to the pod that should open the node, and to what it says.
func (x *index) ofAgent(node *corev1.Node, g *gate.Gate, row Row) []Step {
	namespace, selector := g.Agent.Namespace, labels.SelectorFromSet(g.Agent.PodLabels).String()
	onNode := fmt.Sprintf("kubectl -n %s get pods -l %s --field-selector spec.nodeName=%s -o wide", namespace, selector, node.Name)
	switch {
	case row.Agent == nil:
		return []Step{{Why: "Look for the agent's pod on the node.", Command: onNode}}
	case len(x.sets[g.Name]) == 0:
		return []Step{{Why: "Install the agent, or correct the gate's agent in the configuration.", Command: fmt.Sprintf("kubectl -n %s get daemonsets --show-labels", namespace)}}
	case !row.Agent.Belongs:
		var steps []Step
		for _, ds := range x.sets[g.Name] {
			steps = append(steps, Step{
				Why:     fmt.Sprintf("DaemonSet %s puts no pod there: %s. Change that, or take the node out of the gate's reach.", ds.Name, placement.Obstacle(&ds, node, g)),
				Command: fmt.Sprintf("kubectl -n %s describe daemonset %s", namespace, ds.Name),
			})
		}
		return steps
	case row.Agent.Pod == "":
		return []Step{
			{Why: "The agent has no pod for the node, where it should have one. See why none is made.", Command: fmt.Sprintf("kubectl -n %s describe daemonset %s", namespace, x.sets[g.Name][0].Name)},
		}
	}
	describe := fmt.Sprintf("kubectl -n %s describe pod %s", namespace, row.Agent.Pod)
	logs := fmt.Sprintf("kubectl -n %s logs %s --tail 50", namespace, row.Agent.Pod)
	asks := Step{Why: "See what the agent says of its checks, and of the API server.", Command: logs}
	switch {
	case row.Agent.Ready || row.Verdict == gate.NotReady:
		return []Step{asks}
	case row.Agent.Problem == notReady:
		return []Step{{Why: "The agent's pod runs and is not Ready. See since when, and whether it was started anew.", Command: describe}, asks}
	case row.Agent.Problem == "CrashLoopBackOff":
		return []Step{{Why: "The agent's pod ends again and again. See what it said before it ended.", Command: logs + " --previous"}}
	}
	return []Step{{Why: "The agent's pod does not run: " + row.Agent.Problem + ".", Command: describe}}
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
