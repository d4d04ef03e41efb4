package gate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultNodeSelector selects Linux nodes on which a DaemonSet's pod can run:
// no virtual kubelets, no Fargate nodes, none that is labelled exempt.
func DefaultNodeSelector() *metav1.LabelSelector {
	return &metav1.LabelSelector{
		MatchLabels: map[string]string{"kubernetes.io/os": "linux"},
		MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: ExemptLabel, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"true"}},
			{Key: "type", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"virtual-kubelet"}},
			{Key: "eks.amazonaws.com/compute-type", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"fargate"}},
		},
	}
}

// Governs reports whether the gate's node selector matches the Node. A gate
// without a selector governs nothing.
func (g *Gate) Governs(node *corev1.Node) bool {
	if g.NodeSelector == nil {
		return false
	}
	for key, want := range g.NodeSelector.MatchLabels {
		if got, ok := node.Labels[key]; !ok || got != want {
			return false
		}
	}
	for _, r := range g.NodeSelector.MatchExpressions {
		if !matches(r, node.Labels) {
			return false
		}
	}
	return true
}

// selectorKeys are the labels that a selector asks for, in order.
func selectorKeys(selector *metav1.LabelSelector) []string {
	if selector == nil {
		return nil
	}
	var keys []string
	for key := range selector.MatchLabels {
		keys = append(keys, key)
	}
	for _, r := range selector.MatchExpressions {
		keys = append(keys, r.Key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// matches is total where the library's selectors return an error: an operator
// that validation would have refused matches nothing.
func matches(r metav1.LabelSelectorRequirement, labels map[string]string) bool {
	value, ok := labels[r.Key]
	switch r.Operator {
	case metav1.LabelSelectorOpIn:
		return ok && slices.Contains(r.Values, value)
	case metav1.LabelSelectorOpNotIn:
		return !ok || !slices.Contains(r.Values, value)
	case metav1.LabelSelectorOpExists:
		return ok
	case metav1.LabelSelectorOpDoesNotExist:
		return !ok
	}
	return false
}
