//go:build unix

package world

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// Open reports whether a Node is open by right: its agent says that it serves, in
// the running boot.
func (w *World) Open(node *corev1.Node) bool {
	return !w.Gate.Armed(node) && gate.Judge(node, w.Gate, time.Now()) == gate.Fresh
}

// Ready reports whether a Node says so.
func Ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// KubernetesTaints counts those by which the control plane itself keeps pods off a
// node that does not answer.
func KubernetesTaints(node *corev1.Node) int {
	count := 0
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable {
			count++
		}
	}
	return count
}
