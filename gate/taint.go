package gate

import (
	corev1 "k8s.io/api/core/v1"
)

// IsTaint reports whether a taint is this gate's: identity is key and effect,
// the value is not looked at.
func (g *Gate) IsTaint(t corev1.Taint) bool {
	return t.Key == g.Taint.Key && t.Effect == g.Taint.Effect
}

// Armed reports whether the Node carries the gate's taint.
func (g *Gate) Armed(node *corev1.Node) bool {
	_, ok := g.find(node.Spec.Taints)
	return ok
}

// WithTaint returns the taints with the gate's taint at the end, or the same
// slice if it is there already. The argument is never changed.
func (g *Gate) WithTaint(taints []corev1.Taint) []corev1.Taint {
	return g.with(taints, corev1.Taint{Key: g.Taint.Key, Value: g.Taint.Value, Effect: g.Taint.Effect})
}

// WithoutTaint returns the taints without the gate's, every other taint
// unchanged and in order. The argument is never changed.
func (g *Gate) WithoutTaint(taints []corev1.Taint) []corev1.Taint {
	if _, ok := g.find(taints); !ok {
		return taints
	}
	rest := make([]corev1.Taint, 0, len(taints)-1)
	for _, t := range taints {
		if !g.IsTaint(t) {
			rest = append(rest, t)
		}
	}
	return rest
}

// with adds the gate's taint as given.
func (g *Gate) with(taints []corev1.Taint, taint corev1.Taint) []corev1.Taint {
	if _, ok := g.find(taints); ok {
		return taints
	}
	more := make([]corev1.Taint, 0, len(taints)+1)
	more = append(more, taints...)
	return append(more, taint)
}

// find returns the gate's taint among the taints.
func (g *Gate) find(taints []corev1.Taint) (corev1.Taint, bool) {
	for _, t := range taints {
		if g.IsTaint(t) {
			return t, true
		}
	}
	return corev1.Taint{}, false
}
