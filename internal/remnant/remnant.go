// Package remnant finds what Nodes carry of gates that do not govern them: of those
// whose selector has changed, and of those that are not configured any more.
package remnant

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// Known is what tells a gate's traces from what is somebody else's.
type Known struct {
	Config *gate.Configuration
	// Retired are gates that were configured once.
	Retired []gate.Retired
}

// Remnants are what a Node carries of gates that do not govern it.
type Remnants struct {
	Taints []Taint
	// Heartbeats and Bypasses are names of gates, in order.
	Heartbeats, Bypasses []string
}

// Taint is a gate's, by its key.
type Taint struct {
	Key string
	// Gate is empty where only the key's domain tells that it is one.
	Gate string
}

// None reports whether there are none.
func (r Remnants) None() bool { return len(r.Taints)+len(r.Heartbeats)+len(r.Bypasses) == 0 }

// On finds those of a Node. Nothing of a gate is one that governs the Node, and no
// taint but NoSchedule. A heartbeat that is good still is none where its gate is
// configured: the agent has another gate on the node, and goes on writing all.
func (k Known) On(node *corev1.Node, now time.Time) Remnants {
	var found Remnants
	for _, taint := range node.Spec.Taints {
		if name, left := k.taint(taint, node); left {
			found.Taints = append(found.Taints, Taint{Key: taint.Key, Gate: name})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
		if name, ok := strings.CutPrefix(key, gate.HeartbeatPrefix); ok && k.heartbeat(name, node, now) {
			found.Heartbeats = append(found.Heartbeats, name)
		}
		if name, ok := strings.CutPrefix(key, gate.BypassPrefix); ok && !k.governs(name, node) {
			found.Bypasses = append(found.Bypasses, name)
		}
	}
	return found
}

// taint: the key is a configured gate's, a retired one's, or of nodegate's own domain.
func (k Known) taint(taint corev1.Taint, node *corev1.Node) (name string, left bool) {
	for i := range k.Config.Gates {
		if g := &k.Config.Gates[i]; g.Taint.Key == taint.Key {
			return g.Name, g.IsTaint(taint) && !g.Governs(node)
		}
	}
	if taint.Effect != corev1.TaintEffectNoSchedule {
		return "", false
	}
	for _, r := range k.Retired {
		if r.TaintKey == taint.Key {
			return r.Name, true
		}
	}
	return "", strings.HasPrefix(taint.Key, gate.Group+"/")
}

func (k Known) heartbeat(name string, node *corev1.Node, now time.Time) bool {
	g := k.Config.Gate(name)
	if g == nil {
		return true
	}
	hb, err := gate.ParseHeartbeat(node.Annotations[g.HeartbeatAnnotation()])
	return !g.Governs(node) && (err != nil || !now.Before(hb.Time.Add(hb.TTL)))
}

func (k Known) governs(name string, node *corev1.Node) bool {
	g := k.Config.Gate(name)
	return g != nil && g.Governs(node)
}
