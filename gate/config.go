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
	// CNI holds back pods that are bound to a node already while its gates are
	// closed. Default: they start.
	CNI *CNI `json:"cni,omitempty"`
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
