package gate

// Names that other programs and people rely on. A change to any of them is a
// change of the contract.
const (
	// Group is the API group of everything that nodegate names.
	Group = "nodegate.io"

	// HeartbeatPrefix and the gate's name are the annotation in which the node's
	// agent says that it serves. It MUST be written only by the gate's agent.
	HeartbeatPrefix = "heartbeat." + Group + "/"

	// BypassPrefix and the gate's name are the annotation by which a person opens
	// a gate for a limited time. It MUST be written only with the verb
	// [VerbBypass].
	BypassPrefix = "bypass." + Group + "/"

	// ExemptLabel set to "true" takes a Node out of the default node selector.
	ExemptLabel = Group + "/exempt"

	// InstalledAtAnnotation on the configuration's ConfigMap is the time, in
	// [TimeLayout], at which nodegate was first installed. Upgrades MUST carry it
	// over: the guard adopts Nodes that were created after it.
	InstalledAtAnnotation = Group + "/installed-at"

	// AddedAnnotation on the same ConfigMap says when gates were added to an
	// installation, by their names: of these the guard adopts Nodes that were created
	// later. See [ParseAdded].
	AddedAnnotation = Group + "/added"

	// RetiredAnnotation on it lists gates that were configured once, until what they
	// left is pruned. See [ParseRetired].
	RetiredAnnotation = Group + "/retired"

	// BreakerPrefix and a gate's name are the annotation on the guard's Lease that
	// says how many Nodes were armed lately for their agent's silence, and whether
	// that was too many to go on.
	BreakerPrefix = "breaker." + Group + "/"

	// ModeAnnotation on the guard's Lease is the mode that the guard is in.
	ModeAnnotation = Group + "/mode"

	// SuspendedAnnotation on the guard's Lease says until when, and why, no Node is
	// armed for its agent's silence.
	SuspendedAnnotation = Group + "/expiry-suspended"
)

// The default gate.
const (
	// DefaultName is the name of the gate where none is configured.
	DefaultName = "agent"
	// DefaultTaintKey is the key of the default gate's taint; it has no value.
	DefaultTaintKey = Group + "/agent-not-ready"
)

// Where nodegate runs, and as whom.
const (
	// Namespace holds the controller, nodegate's own agent and the configuration.
	Namespace = "nodegate-system"
	// ControllerAccount is the service account of webhook and guard.
	ControllerAccount = "nodegate-controller"
	// ControllerLease is the Lease that the guarding replica holds.
	ControllerLease = "nodegate-controller"
	// ControllerService is the Service by which an API server reaches the webhook,
	// at WebhookPath.
	ControllerService = "nodegate-controller"
	WebhookPath       = "/mutate-node"
	// WebhookRegistration is the name of the MutatingWebhookConfiguration, and of
	// the one webhook in it. The controller MAY write its caBundle and nothing else.
	WebhookRegistration = "mutate-node." + Group
	// WebhookSecret holds the authority and the certificate that the controller
	// makes for the webhook. Others MUST NOT read it.
	WebhookSecret = "nodegate-webhook"
	// AgentAccount is the service account of nodegate's own agent. Admission
	// confines it to its own Node and its gates.
	AgentAccount = "nodegate-agent"
	// AgentLabel and AgentLabelValue select the agent pods by default.
	AgentLabel      = "app.kubernetes.io/name"
	AgentLabelValue = "nodegate-agent"
	// ConfigMapName is the ConfigMap that holds the [Configuration].
	ConfigMapName = "nodegate-config"
	// ConfigMapKey is the key under which it stands there.
	ConfigMapKey = "config.yaml"
)

// Field managers, so that managedFields and audit logs name the writer.
const (
	ManagerAgent = "nodegate-agent"
	ManagerGuard = "nodegate-guard"
	ManagerCLI   = "kubectl-nodegate"
)

// Virtual resource and verbs on which admission asks the cluster's authorizer.
// The resource name of the check is the gate's name.
const (
	// ResourceGates is the resource, in [Group], that stands for gates in RBAC.
	ResourceGates = "gates"
	// VerbAdminister allows setting and removing heartbeats of any Node.
	VerbAdminister = "administer"
	// VerbBypass allows setting a bypass.
	VerbBypass = "bypass"
)

// What the API server tells admission about a caller.
const (
	// KubeletUserPrefix and KubeletGroup together mark a kubelet's own write.
	KubeletUserPrefix = "system:node:"
	KubeletGroup      = "system:nodes"
	// ExtraNodeName and ExtraPodUID are set for service account tokens bound to a
	// pod. A token bound to a Node object has the first and not the second.
	ExtraNodeName = "authentication.kubernetes.io/node-name"
	ExtraPodUID   = "authentication.kubernetes.io/pod-uid"
)

// MetricsPrefix starts the name of every metric.
const MetricsPrefix = "nodegate_"
