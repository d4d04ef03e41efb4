package gate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// APIVersion and Kind of the configuration.
const (
	APIVersion = Group + "/v1alpha1"
	Kind       = "Configuration"
)

// Configuration is the one file that says what nodegate does. Controller and
// agent read it; the policies are rendered from it.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`
	// Mode applies to every gate. Default: enforce.
	Mode Mode `json:"mode,omitempty"`
	// Gates act independently of each other. Default: the default gate.
	Gates []Gate `json:"gates,omitempty"`
	// ToleratedPrefixes are prefixes of the label and annotation keys that other
	// admission in the cluster sets in whatever write passes by, the writes of
	// nodegate's own agent included, which may otherwise change none.
	ToleratedPrefixes []string `json:"toleratedPrefixes,omitempty"`
}

// Mode says whether gates are enforced. Heartbeats, opening, and the rules on
// who may write what stay on in every mode.
type Mode string

const (
	// ModeEnforce arms.
	ModeEnforce Mode = "enforce"
	// ModeObserve changes no Node; the guard counts what would have been armed.
	ModeObserve Mode = "observe"
	// ModePaused changes no Node and counts nothing.
	ModePaused Mode = "paused"
)

// Modes lists all of them.
func Modes() []Mode { return []Mode{ModeEnforce, ModeObserve, ModePaused} }

// Check is one thing that the agent tests. Exactly one of its kinds is set.
type Check struct {
	// Name tells the check from the gate's others, in the heartbeat, in logs and
	// in metrics. Default: its kind.
	Name string `json:"name,omitempty"`
	// Dwell is how long the check must keep failing before it counts as failing.
	// It never delays opening. Default: 1s for conflist, 10s for socket.
	Dwell *metav1.Duration `json:"dwell,omitempty"`
	// Timeout bounds one answer. Default: 2s.
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	Socket   *SocketCheck   `json:"socket,omitempty"`
	Conflist *ConflistCheck `json:"conflist,omitempty"`
}

// SocketCheck passes while something accepts connections on a Unix socket.
type SocketCheck struct {
	// Path is absolute and at most [MaxSocketPath] bytes.
	Path string `json:"path"`
}

// ConflistCheck passes while the plugin is chained in the CNI configuration that
// the node's runtime loads.
type ConflistCheck struct {
	// PluginType is the chained plugin's type, which is also its binary's name.
	PluginType string `json:"pluginType"`
	// Dir is the runtime's CNI configuration directory. Default: /etc/cni/net.d.
	Dir string `json:"dir,omitempty"`
	// BinDir is the directory of CNI binaries. Default: /opt/cni/bin.
	BinDir string `json:"binDir,omitempty"`
}

// MaxSocketPath is the longest path of a Unix socket, in bytes (sun_path of
// unix(7) has 108 with its final NUL).
const MaxSocketPath = 107

// Kind names what the check tests, as its field in the configuration does, or is
// empty where none is set.
func (c *Check) Kind() string {
	switch {
	case c.Socket != nil:
		return "socket"
	case c.Conflist != nil:
		return "conflist"
	}
	return ""
}
