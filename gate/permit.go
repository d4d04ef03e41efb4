package gate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Rule names what a write may be refused for.
type Rule string

const (
	// RuleHeartbeatSet: a heartbeat is set or changed only by the gate's agent on
	// that node, or with [VerbAdminister]. One that comes with CREATE is void and
	// not looked at.
	RuleHeartbeatSet Rule = "HeartbeatSet"
	// RuleHeartbeatRemoved: removing a heartbeat arms, so anybody may, but not
	// where nothing arms: in a kubelet's write or through a subresource it would
	// take the Node out of the gate's reach.
	RuleHeartbeatRemoved Rule = "HeartbeatRemoved"
	// RuleBypassSet: a bypass is set only with [VerbBypass].
	RuleBypassSet Rule = "BypassSet"
	// RuleBypassValue: a bypass that is set is well-formed and ends at most
	// [MaxBypass] after the latest stamp on the Node.
	RuleBypassValue Rule = "BypassValue"
	// RuleBypassRemoved: as RuleHeartbeatRemoved, with [VerbBypass].
	RuleBypassRemoved Rule = "BypassRemoved"
	// RuleOwnNode: nodegate's own agent updates its own Node, nothing else. An
	// agent that embeds the library opens its gates on its own Node only.
	RuleOwnNode Rule = "OwnNode"
	// RuleOwnMetadata: nodegate's own agent changes no metadata but its gates'
	// heartbeats. Labels and annotations with tolerated prefixes may change: other
	// admission sets them in the agent's write.
	RuleOwnMetadata Rule = "OwnMetadata"
	// RuleOwnSpec: nodegate's own agent changes nothing of the spec but its gates'
	// taints: removed by it, or put there by admission.
	RuleOwnSpec Rule = "OwnSpec"
)

// Rules lists all of them, in the order in which they are tried.
func Rules() []Rule {
	return []Rule{RuleHeartbeatSet, RuleHeartbeatRemoved, RuleBypassSet, RuleBypassValue, RuleBypassRemoved,
		RuleOwnNode, RuleOwnMetadata, RuleOwnSpec}
}

// Message is what the caller of a refused write reads.
func (g *Gate) Message(rule Rule) string {
	administer := fmt.Sprintf("the verb %q on %s.%s %q", VerbAdminister, ResourceGates, Group, g.Name)
	bypass := fmt.Sprintf("the verb %q on %s.%s %q", VerbBypass, ResourceGates, Group, g.Name)
	agent := g.Agent.Username()
	switch rule {
	case RuleHeartbeatSet:
		return fmt.Sprintf("annotation %s is set only by %s with a token bound to a pod on this node, or with %s",
			g.HeartbeatAnnotation(), agent, administer)
	case RuleHeartbeatRemoved:
		return fmt.Sprintf("annotation %s is not removed by a kubelet or through nodes/status, except by its agent or with %s",
			g.HeartbeatAnnotation(), administer)
	case RuleBypassSet:
		return fmt.Sprintf("annotation %s is set only with %s", g.BypassAnnotation(), bypass)
	case RuleBypassValue:
		return fmt.Sprintf("annotation %s must be of the form \"until=2026-01-31T12:00:00Z reason=text\", printable ASCII, at most %d bytes, "+
			"and end at most %s after the latest time in the Node's managedFields", g.BypassAnnotation(), MaxAnnotationBytes, MaxBypass)
	case RuleBypassRemoved:
		return fmt.Sprintf("annotation %s is not removed by a kubelet or through nodes/status, except with %s",
			g.BypassAnnotation(), bypass)
	case RuleOwnNode:
		if !g.Agent.Own() {
			return fmt.Sprintf("%s opens gate %q only on the node that its pod runs on", agent, g.Name)
		}
		return agent + " updates only the Node that its pod runs on, and not its status"
	case RuleOwnMetadata:
		return agent + " changes no metadata of its Node but its gates' heartbeats; " +
			"if another mutating admission did, name the key's prefix in toleratedPrefixes"
	case RuleOwnSpec:
		return agent + " changes nothing in its Node's spec but its gates' taints, which it only removes"
	}
	return ""
}

// Authorizer answers whether the caller has a verb on the gate, as the cluster's
// authorizer sees it.
type Authorizer func(verb string) bool

// Permit returns the first rule by which the i-th gate of the configuration
// refuses a write, or empty. It is the twin of the policy on who may write what,
// and sees the object as all mutation left it. It applies in every mode.
func (c *Configuration) Permit(i int, w Write, authorized Authorizer) Rule {
	p := permission{configuration: c, gate: &c.Gates[i], write: w, authorized: authorized}
	for _, rule := range Rules() {
		if p.breaks(rule) {
			return rule
		}
	}
	return ""
}

// permission is what the rules look at.
type permission struct {
	configuration *Configuration
	gate          *Gate
	write         Write
	authorized    Authorizer
}

func (p permission) breaks(rule Rule) bool {
	heartbeat, bypass := p.gate.HeartbeatAnnotation(), p.gate.BypassAnnotation()
	switch rule {
	case RuleHeartbeatSet:
		return p.updates() && p.sets(heartbeat) && !p.mayBeat()
	case RuleHeartbeatRemoved:
		return p.unarmed() && p.removes(heartbeat) && !p.mayBeat()
	case RuleBypassSet:
		return p.sets(bypass) && !p.authorized(VerbBypass)
	case RuleBypassValue:
		return p.sets(bypass) && !p.gate.bypassInReach(p.write)
	case RuleBypassRemoved:
		return p.unarmed() && p.removes(bypass) && !p.authorized(VerbBypass)
	case RuleOwnNode:
		return p.byAccount() && p.strays()
	case RuleOwnMetadata:
		return p.confined() && !p.configuration.sameMetadata(p.write)
	case RuleOwnSpec:
		return p.confined() && !p.configuration.sameSpec(p.write)
	}
	return false
}

func (p permission) updates() bool { return p.write.Operation == admissionv1.Update }

func (p permission) sets(annotation string) bool {
	return p.write.New != nil && sets(p.write, annotation)
}

func (p permission) removes(annotation string) bool {
	return p.write.New != nil && removes(p.write, annotation)
}

// unarmed: nothing arms in such a write.
func (p permission) unarmed() bool { return p.write.Subresource != "" || p.write.kubelet() }

func (p permission) opens() bool { return p.gate.Armed(p.write.Old) && !p.gate.Armed(p.write.New) }

// byAccount: the gate's agent's account writes, with whatever token.
func (p permission) byAccount() bool { return p.write.User.Username == p.gate.Agent.Username() }

func (p permission) byAgent() bool { return p.gate.byAgent(p.write) }

func (p permission) mayBeat() bool { return p.byAgent() || p.authorized(VerbAdminister) }

// strays: nodegate's own agent does anything but update its Node's main resource;
// another's opens the gate of a Node that is not its own.
func (p permission) strays() bool {
	if p.gate.Agent.Own() {
		return !p.updates() || p.write.Subresource != "" || !p.byAgent()
	}
	return p.updates() && !p.byAgent() && p.opens()
}

// confined: nodegate's own agent updates a Node.
func (p permission) confined() bool { return p.gate.Agent.Own() && p.byAccount() && p.updates() }

// bypassInReach reports whether the bypass is well-formed and not too long,
// counted from the latest stamp.
func (g *Gate) bypassInReach(w Write) bool {
	bypass, err := ParseBypass(w.New.Annotations[g.BypassAnnotation()])
	if err != nil {
		return false
	}
	latest := LatestStamp(w.Old, w.New)
	return validClock(latest) && !bypass.Until.After(latest.Add(MaxBypass))
}

// Gate is the one of a name, or nil.
func (c *Configuration) Gate(name string) *Gate {
	for i := range c.Gates {
		if c.Gates[i].Name == name {
			return &c.Gates[i]
		}
	}
	return nil
}

// AgentGates are the gates that nodegate's own agent serves.
func (c *Configuration) AgentGates() []*Gate {
	var gates []*Gate
	for i := range c.Gates {
		if c.Gates[i].Agent.Own() {
			gates = append(gates, &c.Gates[i])
		}
	}
	return gates
}

// sameMetadata reports whether only heartbeats and tolerated keys differ.
func (c *Configuration) sameMetadata(w Write) bool {
	heartbeats := map[string]bool{}
	for _, g := range c.AgentGates() {
		heartbeats[g.HeartbeatAnnotation()] = true
	}
	mayChange := func(key string) bool { return heartbeats[key] || c.tolerates(key) }
	return sameKeys(w.Old.Labels, w.New.Labels, c.tolerates) &&
		sameKeys(w.Old.Annotations, w.New.Annotations, mayChange) &&
		sameFields(&w.Old.ObjectMeta, &w.New.ObjectMeta,
			"labels", "annotations", "managedFields", "resourceVersion", "generation")
}

// sameSpec reports whether only taints of the agent's gates went, or were added
// with a value that admission gives them.
func (c *Configuration) sameSpec(w Write) bool {
	gates := c.AgentGates()
	foreign := func(taints []corev1.Taint) []corev1.Taint {
		for _, g := range gates {
			taints = g.WithoutTaint(taints)
		}
		return taints
	}
	for _, g := range gates {
		sent, ok := g.find(w.New.Spec.Taints)
		want := g.Taint.Value
		if stored, armed := g.find(w.Old.Spec.Taints); armed {
			want = stored.Value
		}
		if ok && sent.Value != want {
			return false
		}
	}
	return slices.EqualFunc(foreign(w.Old.Spec.Taints), foreign(w.New.Spec.Taints), sameTaint) &&
		sameFields(&w.Old.Spec, &w.New.Spec, "taints")
}

func (c *Configuration) tolerates(key string) bool {
	return slices.ContainsFunc(c.ToleratedPrefixes, func(prefix string) bool {
		return strings.HasPrefix(key, prefix)
	})
}

// sameTaint compares the time only where it means something: where it evicts
// pods. Other admission may note one on another gate's taint that it puts back.
func sameTaint(a, b corev1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect &&
		(a.Effect != corev1.TaintEffectNoExecute || a.TimeAdded.Equal(b.TimeAdded))
}

// sameKeys reports whether two maps differ at most in keys that may change.
func sameKeys(a, b map[string]string, mayChange func(string) bool) bool {
	within := func(a, b map[string]string) bool {
		for key, value := range a {
			if other, ok := b[key]; (!ok || other != value) && !mayChange(key) {
				return false
			}
		}
		return true
	}
	return within(a, b) && within(b, a)
}

// sameFields compares two objects as JSON has them, so that fields which later
// versions of Kubernetes add are compared as well.
func sameFields(a, b any, ignored ...string) bool {
	x, errX := runtime.DefaultUnstructuredConverter.ToUnstructured(a)
	y, errY := runtime.DefaultUnstructuredConverter.ToUnstructured(b)
	if errX != nil || errY != nil {
		return false
	}
	for _, field := range ignored {
		delete(x, field)
		delete(y, field)
	}
	return reflect.DeepEqual(x, y)
}
