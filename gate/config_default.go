package gate

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults of a check.
const (
	DefaultDwell         = 10 * time.Second
	DefaultConflistDwell = time.Second
	DefaultCheckTimeout  = 2 * time.Second
	DefaultNetDir        = "/etc/cni/net.d"
	DefaultBinDir        = "/opt/cni/bin"
	DefaultHost          = "127.0.0.1"
)

// Default returns the configuration that an empty file stands for: one gate,
// enforced.
func Default() *Configuration {
	cfg := &Configuration{}
	cfg.setDefaults()
	return cfg
}

// DefaultGate returns the gate that nodegate runs where none is configured.
func DefaultGate() *Gate { return &Default().Gates[0] }

func (c *Configuration) setDefaults() {
	c.APIVersion, c.Kind = APIVersion, Kind
	setDefault(&c.Mode, ModeEnforce)
	if len(c.Gates) == 0 {
		c.Gates = []Gate{{Name: DefaultName, Taint: Taint{Key: DefaultTaintKey}}}
	}
	for i := range c.Gates {
		c.Gates[i].SetDefaults()
	}
	if c.CNI != nil {
		c.CNI.setDefaults()
	}
}

// SetDefaults fills in what the gate leaves to defaults.
func (g *Gate) SetDefaults() {
	setDefault(&g.Taint.Effect, corev1.TaintEffectNoSchedule)
	setDefault(&g.FinalObject, FinalObjectAudit)
	setDefault(&g.Agent.Namespace, Namespace)
	setDefault(&g.Agent.ServiceAccount, AgentAccount)
	if g.NodeSelector == nil {
		g.NodeSelector = DefaultNodeSelector()
	}
	if len(g.Agent.PodLabels) == 0 {
		g.Agent.PodLabels = map[string]string{AgentLabel: AgentLabelValue}
	}
	for i := range g.Checks {
		g.Checks[i].setDefaults()
	}
}

func (c *Check) setDefaults() {
	setDefault(&c.Name, strings.ToLower(c.Kind()))
	dwell := DefaultDwell
	if c.Conflist != nil {
		dwell = DefaultConflistDwell
	}
	if c.Dwell == nil {
		c.Dwell = &metav1.Duration{Duration: dwell}
	}
	if c.Timeout == nil {
		c.Timeout = &metav1.Duration{Duration: DefaultCheckTimeout}
	}
	c.setKindDefaults()
}

func (c *Check) setKindDefaults() {
	if c.Socket != nil && c.Socket.HTTP != nil {
		setDefault(&c.Socket.HTTP.Path, "/")
	}
	if c.Conflist != nil {
		c.Conflist.SetDefaults()
	}
	if c.HTTP != nil {
		setDefault(&c.HTTP.Host, DefaultHost)
		setDefault(&c.HTTP.Path, "/")
		setDefault(&c.HTTP.Scheme, corev1.URISchemeHTTP)
	}
	if c.GRPC != nil {
		setDefault(&c.GRPC.Host, DefaultHost)
	}
	if c.NodeCondition != nil {
		setDefault(&c.NodeCondition.Status, corev1.ConditionTrue)
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
