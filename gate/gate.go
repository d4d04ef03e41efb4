package gate

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Gate is a named rule: one taint, one heartbeat annotation, the Nodes it
// governs, the agent that may open it and the checks which that agent runs.
type Gate struct {
	// Name is a DNS label, unique in the configuration. It is part of both
	// annotations and of the names of the policies.
	Name string `json:"name"`
	// Taint is what an armed Node carries.
	Taint Taint `json:"taint"`
	// NodeSelector selects the governed Nodes. It must select no Node on which
	// the agent cannot run. Default: [DefaultNodeSelector].
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
	// Agent says who writes the heartbeat.
	Agent Agent `json:"agent"`
	// FinalObject says what happens to a write that leaves the Node open against
	// the rules after all admission has run, because some other mutator removed
	// the taint. Default: Audit.
	FinalObject FinalObjectAction `json:"finalObject,omitempty"`
	// Checks are what the agent tests; the gate opens when all of them pass.
	Checks []Check `json:"checks,omitempty"`
}

// Taint is a gate's taint. Its identity on a Node is key and effect.
type Taint struct {
	Key   string `json:"key"`
	Value string `json:"value,omitempty"`
	// Effect is NoSchedule. NoExecute would evict running pods at every roll of
	// the agent, PreferNoSchedule would gate nothing.
	Effect corev1.TaintEffect `json:"effect,omitempty"`
}

// Agent identifies the pods that write a gate's heartbeat.
type Agent struct {
	Namespace      string            `json:"namespace,omitempty"`
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	PodLabels      map[string]string `json:"podLabels,omitempty"`
}

// FinalObjectAction is what the policy on the final object does.
type FinalObjectAction string

const (
	// FinalObjectAudit lets the write pass, warns its caller and notes it in the
	// audit log.
	FinalObjectAudit FinalObjectAction = "Audit"
	// FinalObjectDeny refuses the write.
	FinalObjectDeny FinalObjectAction = "Deny"
)

// HeartbeatAnnotation is the key under which the gate's agent writes.
func (g *Gate) HeartbeatAnnotation() string { return HeartbeatPrefix + g.Name }

// BypassAnnotation is the key under which a person bypasses the gate.
func (g *Gate) BypassAnnotation() string { return BypassPrefix + g.Name }

// Username is the agent's name as the API server's authentication has it.
func (a Agent) Username() string {
	return "system:serviceaccount:" + a.Namespace + ":" + a.ServiceAccount
}

// Own reports whether this is nodegate's own agent, which admission confines to
// its Node and its gates, and not another project's agent that embeds the
// library.
func (a Agent) Own() bool {
	return a.Namespace == Namespace && a.ServiceAccount == AgentAccount
}

// Adopted reports whether the Node carries the gate's heartbeat, bypass or
// taint, of whatever content. Admission touches no other Node but at CREATE.
func (g *Gate) Adopted(node *corev1.Node) bool {
	if _, ok := node.Annotations[g.HeartbeatAnnotation()]; ok {
		return true
	}
	if _, ok := node.Annotations[g.BypassAnnotation()]; ok {
		return true
	}
	return g.Armed(node)
}
