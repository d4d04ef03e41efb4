package report

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

// why is the answer to why the gate is as it is.
func (x *index) why(node *corev1.Node, g *gate.Gate, row Row) string {
	if row.State == Armed {
		return x.whyArmed(node, g, row)
	}
	return x.whyOpen(node, g, row)
}

func (x *index) whyArmed(node *corev1.Node, g *gate.Gate, row Row) string {
	var said []string
	switch row.Verdict {
	case gate.Fresh:
		if row.Agent != nil && !row.Agent.Ready {
			said = append(said, "Armed, because the node's agent is gone: its last heartbeat is good still, but no pod of it is Ready. "+
				"It opens by itself as soon as the agent is back and shows that it serves.")
			break
		}
		said = append(said, "Armed, though the node's agent serves: it removes the taint in its next write, which it makes at once. "+
			"If this lasts, its writes are refused, or something adds the taint again and again.")
	case gate.Bypassed:
		return fmt.Sprintf("Armed in spite of a bypass until %s (%s): anybody may remove the taint until then, and nobody has since it was added again.",
			stamp(row.Bypass.Until.Time), row.Bypass.Reason)
	default:
		said = append(said, "Armed, because "+row.Verdict.Meaning()+".")
		switch {
		case x.saw(PartDaemonSets) && len(x.sets[g.Name]) == 0:
			said = append(said, fmt.Sprintf("Nothing will open it: no DaemonSet in namespace %s creates agent pods.", g.Agent.Namespace))
		case row.Agent != nil && !row.Agent.Belongs:
			said = append(said, "Nothing will open it: no pod of the agent can run on this node.")
		case row.Verdict == gate.OtherBoot && !gate.ValidBootID(node.Status.NodeInfo.BootID):
			said = append(said, "Nothing will open it while the Node shows no boot id.")
		default:
			said = append(said, "It opens by itself as soon as the agent on the node shows that it serves.")
		}
	}
	if x.Config.Mode != gate.ModeEnforce {
		said = append(said, fmt.Sprintf("The mode is %s, in which no node is armed anew; this one was before, or by somebody else.", x.Config.Mode))
	}
	return strings.Join(said, " ")
}

func (x *index) whyOpen(node *corev1.Node, g *gate.Gate, row Row) string {
	switch {
	case row.Verdict == gate.Bypassed:
		return fmt.Sprintf("Open by a bypass until %s: %s. Then the guard arms it, unless the node's agent serves.", stamp(row.Bypass.Until.Time), row.Bypass.Reason)
	case row.Verdict == gate.Fresh && row.Agent != nil && row.Agent.Belongs && !row.Agent.Ready:
		return "Open by right: the heartbeat is good. But the agent's pod is not Ready now; if that lasts for 30 s and no heartbeat comes, the guard arms the node."
	case row.Verdict == gate.Fresh:
		return "Open by right: the node's agent serves."
	case !row.Adopted:
		return "Open, and not in the gate's care yet: " + unadopted(x, node, g) + " It is from its agent's first heartbeat on."
	case !row.AgainstTheRules:
		return "Open, though the heartbeat is too old: no pod of the agent can run on this node, so that its silence says nothing."
	case x.Config.Mode != gate.ModeEnforce:
		return fmt.Sprintf("Open, though %s: the mode is %s, in which no node is armed. Enforcing would arm it.", row.Verdict.Meaning(), x.Config.Mode)
	}
	return "Open against the rules: " + row.Verdict.Meaning() + ". " + x.whoShouldArm(g, row)
}

func unadopted(x *index, node *corev1.Node, g *gate.Gate) string {
	if !x.saw(PartConfiguration) {
		return "its agent has never written a heartbeat. When nodegate was installed was not seen: a Node that was created later is in its care all the same."
	}
	if x.InstalledAt.IsZero() {
		return "its agent has never written a heartbeat, and when nodegate was installed is not recorded."
	}
	return fmt.Sprintf("it was there (since %s) before the gate was (since %s), and its agent has never written a heartbeat.",
		stamp(node.CreationTimestamp.Time), stamp(x.installedAt(g)))
}

// whoShouldArm is what became of the guard.
func (x *index) whoShouldArm(g *gate.Gate, row Row) string {
	const within = "The guard arms such a node within a second."
	if !x.saw(PartLease) {
		return within
	}
	guard := x.guard()
	if !guard.Running {
		return "The guard should arm it, and no guard runs."
	}
	if row.Verdict == gate.Expired && guard.Suspended != nil {
		return fmt.Sprintf("The guard holds back until %s: %s.", stamp(guard.Suspended.Until.Time), guard.Suspended.Reason)
	}
	for _, b := range guard.Breakers {
		if row.Verdict == gate.Expired && b.Gate == g.Name && b.Tripped {
			return fmt.Sprintf("The guard holds back: it has armed %d nodes for their agents' silence within ten minutes, and %d is the limit.", b.Armed, b.Limit)
		}
	}
	return within
}

// ungoverned says by which label, and what to do about a taint that is there all the
// same.
func ungoverned(node *corev1.Node, g *gate.Gate) (string, []Step) {
	why := "Not governed: " + unmet(g.NodeSelector, node.Labels) + "."
	if !g.Armed(node) {
		return why, nil
	}
	return why + " It carries the gate's taint all the same, which nothing removes.", []Step{
		{Why: "Remove what gates have left on Nodes that they do not govern.", Command: prune},
	}
}

func untaint(node *corev1.Node, g *gate.Gate) string {
	return fmt.Sprintf("kubectl taint nodes %s %s:%s-", node.Name, g.Taint.Key, g.Taint.Effect)
}

// unmet names the first requirement of a selector that labels do not meet.
func unmet(selector *metav1.LabelSelector, labels map[string]string) string {
	if selector == nil {
		return "the gate selects no node"
	}
	has := func(key string) string {
		if value, ok := labels[key]; ok {
			return fmt.Sprintf("the node has %s=%s", key, value)
		}
		return "the node has no label " + key
	}
	single := func(r metav1.LabelSelectorRequirement) bool {
		g := gate.Gate{NodeSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}}}
		return g.Governs(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
	}
	for _, key := range sortedKeys(selector.MatchLabels) {
		if want := selector.MatchLabels[key]; labels[key] != want {
			return fmt.Sprintf("the gate is for %s=%s, and %s", key, want, has(key))
		}
	}
	for _, r := range selector.MatchExpressions {
		if !single(r) {
			return fmt.Sprintf("the gate is for %s, and %s", metav1.FormatLabelSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}}), has(r.Key))
		}
	}
	return "the gate's selector does not select it"
}
