package guard

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodegate/nodegate/gate"
)

const metricsPrefix = gate.MetricsPrefix + "guard_"

// Metrics count what the guard does. A nil one counts nothing.
type Metrics struct {
	armedTotal     *prometheus.CounterVec
	wouldArmTotal  *prometheus.CounterVec
	conflictsTotal prometheus.Counter
	noDaemonSet    *prometheus.GaugeVec
}

// NewMetrics returns metrics that no registry knows yet.
func NewMetrics() *Metrics {
	return &Metrics{
		armedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "armed_total",
			Help: "Nodes that the guard armed, by gate and reason.",
		}, []string{"gate", "reason"}),
		wouldArmTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "would_arm_total",
			Help: "Nodes that the guard would have armed in the mode enforce, by gate and reason, each trouble once; counted in the mode observe.",
		}, []string{"gate", "reason"}),
		conflictsTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricsPrefix + "conflicts_total",
			Help: "Writes that were decided anew because somebody else wrote the Node at the same time.",
		}),
		noDaemonSet: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metricsPrefix + "agent_daemonset_missing",
			Help: "1 if there is no DaemonSet of the gate's agent, so that nothing is armed for Expired and AgentAbsent; else 0.",
		}, []string{"gate"}),
	}
}

// Register makes the metrics known to a registry.
func (m *Metrics) Register(registry prometheus.Registerer) error {
	return errors.Join(
		registry.Register(m.armedTotal),
		registry.Register(m.wouldArmTotal),
		registry.Register(m.conflictsTotal),
		registry.Register(m.noDaemonSet),
	)
}

func (m *Metrics) armed(g *gate.Gate, reason Reason) {
	if m != nil {
		m.armedTotal.WithLabelValues(g.Name, string(reason)).Inc()
	}
}

func (m *Metrics) wouldArm(g *gate.Gate, reason Reason) {
	if m != nil {
		m.wouldArmTotal.WithLabelValues(g.Name, string(reason)).Inc()
	}
}

func (m *Metrics) conflict() {
	if m != nil {
		m.conflictsTotal.Inc()
	}
}

func (m *Metrics) daemonSetMissing(g *gate.Gate, missing bool) {
	if m == nil {
		return
	}
	value := 0.0
	if missing {
		value = 1
	}
	m.noDaemonSet.WithLabelValues(g.Name).Set(value)
}
