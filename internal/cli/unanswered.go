package cli

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// unanswered are the Nodes on which nodegate-cni would stay in the list and ask an
// agent that is no more: no pod would start there.
func unanswered(before, after *gate.Configuration, nodes []corev1.Node) []string {
	var names []string
	for i := range nodes {
		held := answers(before, &nodes[i], func(g *gate.Gate) bool { return slices.ContainsFunc(g.Checks, chainsHold) })
		if held && !answers(after, &nodes[i], func(*gate.Gate) bool { return true }) {
			names = append(names, nodes[i].Name)
		}
	}
	return names
}

// answers reports whether nodegate's agent answers the plugin on a Node, and runs
// such a gate there.
func answers(cfg *gate.Configuration, node *corev1.Node, such func(*gate.Gate) bool) bool {
	return cfg.CNI != nil && slices.ContainsFunc(checked(cfg), func(g *gate.Gate) bool { return g.Governs(node) && such(g) })
}

func chainsHold(c gate.Check) bool {
	return c.Conflist != nil && c.Conflist.PluginType == gate.CNIPlugin && !c.Conflist.Disabled
}
