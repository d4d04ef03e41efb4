// Package placement says where a gate's agent belongs, and which pods are its: what
// the guard and people who look at a cluster must see alike.
package placement

import (
	"fmt"
	"maps"
	"slices"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/nodegate/nodegate/gate"
)

// ShouldRun reports whether the DaemonSet belongs on the Node, as the DaemonSet
// controller decides it, the gate's own taint apart: node name, node selector,
// required affinity, and tolerations of what keeps pods away.
func ShouldRun(ds *appsv1.DaemonSet, node *corev1.Node, g *gate.Gate) bool {
	return fits(ds, node, g, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute)
}

// MayStay reports whether a pod of the DaemonSet that is on the Node may stay
// there, though the DaemonSet controller might not put one there now: a taint that
// came later keeps new pods away and leaves those that run.
func MayStay(ds *appsv1.DaemonSet, node *corev1.Node, g *gate.Gate) bool {
	return fits(ds, node, g, corev1.TaintEffectNoExecute)
}

// Belongs reports whether one of the agent's DaemonSets should run a pod on the Node
// or, where one is bound to it, lets it stay.
func Belongs(sets []appsv1.DaemonSet, node *corev1.Node, g *gate.Gate, bound bool) bool {
	return slices.ContainsFunc(sets, func(ds appsv1.DaemonSet) bool {
		return ShouldRun(&ds, node, g) || bound && MayStay(&ds, node, g)
	})
}

// DaemonSets are those that create the gate's agent pods, which one that is being
// deleted does not, among those of the agent's namespace.
func DaemonSets(g *gate.Gate, all []appsv1.DaemonSet) []appsv1.DaemonSet {
	agent := labels.SelectorFromSet(g.Agent.PodLabels)
	var sets []appsv1.DaemonSet
	for _, ds := range all {
		if ds.DeletionTimestamp == nil && ds.Namespace == g.Agent.Namespace && agent.Matches(labels.Set(ds.Spec.Template.Labels)) {
			sets = append(sets, ds)
		}
	}
	return sets
}

// PodSelectors select the agent pods of all gates, by namespace: all pods of one
// where their labels differ, for one selector cannot say so.
func PodSelectors(cfg *gate.Configuration) map[string]labels.Selector {
	common := map[string]map[string]string{}
	selectors := map[string]labels.Selector{}
	for i := range cfg.Gates {
		agent := cfg.Gates[i].Agent
		known, ok := common[agent.Namespace]
		switch {
		case !ok:
			common[agent.Namespace] = agent.PodLabels
			selectors[agent.Namespace] = labels.SelectorFromSet(agent.PodLabels)
		case !maps.Equal(known, agent.PodLabels):
			selectors[agent.Namespace] = labels.Everything()
		}
	}
	return selectors
}

// NodeOf is the name of the Node that a pod is bound to or, where it waits for that,
// was made for: the DaemonSet controller requires it by a field of the affinity.
func NodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" || pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil ||
		pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return pod.Spec.NodeName
	}
	for _, term := range pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// Ready reports whether a pod is.
func Ready(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return false // whatever it said before
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// fits reports whether a pod of the DaemonSet fits the Node, as far as taints of
// these effects go.
func fits(ds *appsv1.DaemonSet, node *corev1.Node, g *gate.Gate, effects ...corev1.TaintEffect) bool {
	pod := &ds.Spec.Template.Spec
	if pod.NodeName != "" && pod.NodeName != node.Name {
		return false
	}
	wanted, err := nodeaffinity.NewRequiredNodeAffinity(pod.NodeSelector, pod.Affinity).Match(node)
	return err == nil && wanted && tolerates(pod, g.WithoutTaint(node.Spec.Taints), effects)
}

// Obstacle says what keeps the DaemonSet's pods away from the Node, the gate's own
// taint apart; empty if nothing does.
func Obstacle(ds *appsv1.DaemonSet, node *corev1.Node, g *gate.Gate) string {
	pod := &ds.Spec.Template.Spec
	taint, hindered := hindrance(pod, g.WithoutTaint(node.Spec.Taints), []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute})
	switch {
	case ShouldRun(ds, node, g):
		return ""
	case hindered:
		return fmt.Sprintf("it does not tolerate the taint %s", taint.ToString())
	}
	return "its node selector or affinity does not select the node"
}

// tolerates reports whether the pod may be on a Node with these taints, as far as
// they have one of the effects.
func tolerates(pod *corev1.PodSpec, taints []corev1.Taint, effects []corev1.TaintEffect) bool {
	_, hindered := hindrance(pod, taints, effects)
	return !hindered
}

// hindrance is the first taint that keeps the pod away.
func hindrance(pod *corev1.PodSpec, taints []corev1.Taint, effects []corev1.TaintEffect) (corev1.Taint, bool) {
	hinders := func(taint *corev1.Taint) bool {
		return slices.Contains(effects, taint.Effect) && !passing(pod, taint)
	}
	return corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), taints, pod.Tolerations, hinders, true)
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
