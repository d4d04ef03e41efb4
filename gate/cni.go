package gate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodegate/nodegate/internal/netconf"
)

// CNIPlugin is the type of nodegate's own chained CNI plugin, which holds back the
// pods that are bound to a node already while its gates are closed.
const CNIPlugin = netconf.PluginType

// CNI says how pods that are bound to a node are held back by [CNIPlugin], and that
// nodegate's own agent answers it. A pod waits for each gate of that agent whose
// taint it does not tolerate, unless it belongs to an agent: to the one that opens
// the gate, or to one that a pod check of the gate selects.
type CNI struct {
	// Socket is where the agent answers. Its directory is for nothing else, and for
	// root alone. Default: /run/nodegate/cni.sock.
	Socket string `json:"socket,omitempty"`
	// Timeout is how long a pod waits before its start fails, and is tried again by
	// the kubelet 10 to 15 seconds later. At most 1m. Default: 20s.
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Exempt are pods that never wait, even where no agent answers: each is a
	// namespace, or namespace/name with the wildcards * and ? in the name. Those of
	// nodegate-system never wait. Default: kube-system.
	Exempt []string `json:"exempt,omitempty"`
	// Status lets the plugin's STATUS fail while an ordinary pod would have to wait,
	// which makes the node NotReady where the runtime asks for it. Then the kubelet
	// starts pods on the host's network alone, whatever is exempt or tolerates the gate.
	Status bool `json:"status,omitempty"`
}

func (c *CNI) setDefaults() {
	defaults := netconf.Defaults()
	setDefault(&c.Socket, defaults.Socket)
	if c.Timeout == nil {
		c.Timeout = &metav1.Duration{Duration: defaults.Timeout}
	}
	if c.Exempt == nil {
		c.Exempt = defaults.Exempt
	}
}

func (c *CNI) settings() netconf.Settings {
	return netconf.Settings{Socket: c.Socket, Timeout: c.Timeout.Duration, Exempt: c.Exempt, Status: c.Status}
}

// Entry is the plugin's entry in a list, one JSON object.
func (c *CNI) Entry() []byte { return c.settings().Entry() }

func (c *CNI) validate(path *field.Path) field.ErrorList {
	var faults field.ErrorList
	for _, fault := range c.settings().Validate() {
		faults = append(faults, field.Invalid(path.Child(fault.Field), fault.Value, fault.Detail))
	}
	return faults
}
