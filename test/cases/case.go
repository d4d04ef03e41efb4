// Package cases is the one table of what admission does with writes to Nodes.
//
// Every row is run against the functions of package gate, against the policies'
// CEL, and, by the conformance suite, against whatever mutation a real API server
// has installed. A new rule enters here first.
package cases

import (
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// Verb is how a write reaches the API server.
type Verb string

const (
	// Create posts the Node.
	Create Verb = "create"
	// Put replaces the Node unconditionally, without a resourceVersion.
	Put Verb = "put"
	// Merge is a JSON merge patch.
	Merge Verb = "merge patch"
	// Strategic is a strategic merge patch, as kubectl sends it.
	Strategic Verb = "strategic patch"
	// JSON is a JSON patch.
	JSON Verb = "json patch"
	// Apply is a forced server-side apply of the taints.
	Apply Verb = "apply"
	// Delete deletes the Node.
	Delete Verb = "delete"
)

// Identity is who writes.
type Identity string

const (
	// Admin may do everything.
	Admin Identity = "cluster admin"
	// Editor may write Nodes, and has no verb on gates.
	Editor Identity = "editor of nodes"
	// Administrator has the verb administer on the default gate besides.
	Administrator Identity = "administrator of the gate"
	// Bypasser has the verb bypass on the default gate besides.
	Bypasser Identity = "holder of bypass"
	// Lifecycle is the node lifecycle controller.
	Lifecycle Identity = "node lifecycle controller"
	// Kubelet is the kubelet of the Node.
	Kubelet Identity = "its kubelet"
	// Agent is nodegate's agent with a token bound to a pod on the Node.
	Agent Identity = "its agent"
	// AgentElsewhere is the same account in a pod on another node.
	AgentElsewhere Identity = "agent of another node"
	// AgentOfNode has a token bound to the Node object, not to a pod.
	AgentOfNode Identity = "agent with a token of the Node object"
	// AgentUnbound has a token bound to nothing.
	AgentUnbound Identity = "agent with an unbound token"
	// OtherPod is another account in a pod on the Node.
	OtherPod Identity = "another pod of the node"
	// StorageAgent is the storage gate's agent in a pod on the Node.
	StorageAgent Identity = "its storage agent"
	// StorageElsewhere is the same account in a pod on another node.
	StorageElsewhere Identity = "storage agent of another node"
)

// Outcome is what becomes of a write.
type Outcome string

const (
	// Untouched: it is stored as sent.
	Untouched Outcome = "untouched"
	// Armed: it is stored with the gate's taint added, and else as sent.
	Armed Outcome = "armed"
	// Denied: it is refused, and nothing is stored.
	Denied Outcome = "denied"
)

// Case is a row of the table.
type Case struct {
	// ID is short and stable; mutants and other programs name rows by it.
	ID string
	// Must is the rule that the row shows.
	Must string

	// Mode is enforce unless the row says otherwise.
	Mode gate.Mode
	// Tolerating: the configuration tolerates [ToleratedPrefix].
	Tolerating bool
	// As is who writes.
	As Identity
	// Verb is how, Status whether through nodes/status.
	Verb   Verb
	Status bool
	// Stored makes the stored Node out of [Blank]. Unused by Create.
	Stored Edit
	// Sent makes the sent Node out of the stored one, for Create out of [Blank].
	Sent Edit

	// Want is what becomes of it, by the default gate.
	Want Outcome
	// Clocked is what becomes of it where the judge has a clock of its own, as the
	// webhook has, if that is not the same.
	Clocked Outcome
	// Storage is what the storage gate does, where it is not Untouched.
	Storage Outcome
	// Verdict is the default gate's on the result of an UPDATE that is judged.
	Verdict gate.Verdict
	// Rule refuses it, where Want is Denied and Kubernetes itself does not.
	Rule gate.Rule
	// StorageRule is the same of the storage gate.
	StorageRule gate.Rule
	// ByKubernetes: NodeRestriction refuses it.
	ByKubernetes bool

	// Predates: the stored Node cannot come to be under the rules, only before they
	// are installed.
	Predates bool
	// Foreign: policies of somebody else take the taint away in every pass. Only a
	// real API server shows what comes of it.
	Foreign bool
	// Rounds is how often the row is run, if more than once.
	Rounds int
}

// UserInfo is what the API server tells admission about an identity.
func (i Identity) UserInfo(node string) authenticationv1.UserInfo {
	account := func(namespace, name string, extra map[string]authenticationv1.ExtraValue) authenticationv1.UserInfo {
		return authenticationv1.UserInfo{
			Username: "system:serviceaccount:" + namespace + ":" + name,
			Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
			Extra:    extra,
		}
	}
	bound := func(node string) map[string]authenticationv1.ExtraValue {
		return map[string]authenticationv1.ExtraValue{gate.ExtraNodeName: {node}, gate.ExtraPodUID: {"8125c226-9568-48d0-bda1-f5a076bdacb9"}}
	}
	switch i {
	case Admin:
		return authenticationv1.UserInfo{Username: "admin", Groups: []string{"system:masters", "system:authenticated"}}
	case Kubelet:
		return authenticationv1.UserInfo{
			Username: gate.KubeletUserPrefix + node,
			Groups:   []string{gate.KubeletGroup, "system:authenticated"},
		}
	case Lifecycle:
		return account("kube-system", "node-controller", nil)
	case Agent:
		return account(gate.Namespace, gate.AgentAccount, bound(node))
	case AgentElsewhere:
		return account(gate.Namespace, gate.AgentAccount, bound("elsewhere"))
	case AgentOfNode:
		return account(gate.Namespace, gate.AgentAccount, map[string]authenticationv1.ExtraValue{gate.ExtraNodeName: {node}})
	case AgentUnbound:
		return account(gate.Namespace, gate.AgentAccount, nil)
	case OtherPod:
		return account("default", "other", bound(node))
	case StorageAgent:
		return account("storage-system", "storage-node", bound(node))
	case StorageElsewhere:
		return account("storage-system", "storage-node", bound("elsewhere"))
	}
	return authenticationv1.UserInfo{Username: string(i), Groups: []string{"system:authenticated"}}
}

// Authorized says which verbs on a gate an identity has.
func (i Identity) Authorized(gateName, verb string) bool {
	switch i {
	case Admin:
		return true
	case Administrator:
		return gateName == gate.DefaultName && verb == gate.VerbAdminister
	case Bypasser:
		return gateName == gate.DefaultName && verb == gate.VerbBypass
	}
	return false
}

// Write is the row as admission sees it, for a Node of this name, with the stored
// Node where there is one.
func (c *Case) Write(stored *corev1.Node, name string, now time.Time) gate.Write {
	w := gate.Write{Operation: admissionv1.Update, Name: name, User: c.As.UserInfo(name), Old: stored}
	if c.Status {
		w.Subresource = "status"
	}
	switch c.Verb {
	case Create:
		w.Operation, w.Old = admissionv1.Create, nil
		w.New = Blank(name, "", now)
	case Delete:
		w.Operation = admissionv1.Delete
		return w
	default:
		w.New = stored.DeepCopy()
	}
	c.Sent(w.New, now)
	return w
}
