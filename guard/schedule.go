package guard

import (
	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/nodegate/nodegate/gate"
)

// shouldRun reports whether the DaemonSet belongs on the Node, as the DaemonSet
// controller decides it, the gate's own taint apart: node name, node selector,
// required affinity, and tolerations of what keeps pods away. A DaemonSet that
// is being deleted belongs nowhere.
func shouldRun(ds *appsv1.DaemonSet, node *corev1.Node, g *gate.Gate) bool {
	pod := &ds.Spec.Template.Spec
	if ds.DeletionTimestamp != nil || pod.NodeName != "" && pod.NodeName != node.Name {
		return false
	}
	fits, err := nodeaffinity.NewRequiredNodeAffinity(pod.NodeSelector, pod.Affinity).Match(node)
	return err == nil && fits && tolerates(pod, g.WithoutTaint(node.Spec.Taints))
}

// tolerates reports whether the pod may be placed on a Node with these taints.
func tolerates(pod *corev1.PodSpec, taints []corev1.Taint) bool {
	hinders := func(taint *corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule && !passing(pod, taint)
	}
	_, hindered := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), taints, pod.Tolerations, hinders, true)
	return !hindered
}

// passing reports whether the taint says something of the node's condition, and
// nothing of which pods belong there. The DaemonSet controller adds tolerations
// of these to its pods. Of not-ready and unreachable it adds those of NoExecute
// only; where an agent is kept away by NoSchedule, it still belongs there, and
// its node is armed before it comes back.
func passing(pod *corev1.PodSpec, taint *corev1.Taint) bool {
	switch taint.Key {
	case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable:
		return true
	case corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure, corev1.TaintNodePIDPressure,
		corev1.TaintNodeUnschedulable:
		return taint.Effect == corev1.TaintEffectNoSchedule
	case corev1.TaintNodeNetworkUnavailable:
		return taint.Effect == corev1.TaintEffectNoSchedule && pod.HostNetwork
	}
	return false
}
