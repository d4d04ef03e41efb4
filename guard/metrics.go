package guard

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodegate/nodegate/gate"
)

const metricsPrefix = gate.MetricsPrefix + "guard_"

// Metrics count what the guard does. A nil one counts nothing.
type Metrics struct {
	armedTotal      *prometheus.CounterVec
	wouldArmTotal   *prometheus.CounterVec
	seenArmedTotal  *prometheus.CounterVec
	seenOpenedTotal *prometheus.CounterVec
	exposure        *prometheus.HistogramVec
	conflictsTotal  prometheus.Counter
	deniedTotal     prometheus.Counter
	droppedTotal    prometheus.Counter
	noDaemonSet     *prometheus.GaugeVec
	agentlessNodes  *prometheus.GaugeVec
	tripped         *prometheus.GaugeVec
	suspension      prometheus.Gauge
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
		seenArmedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "seen_armed_total",
			Help: "Nodes that the guard saw become armed, by gate, reason (Created, or what the heartbeat was worth) and who did it: guard, admission or other.",
		}, []string{"gate", "reason", "by"}),
		seenOpenedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "seen_opened_total",
			Help: "Nodes that the guard saw become open, by gate and who did it: agent, bypass or other.",
		}, []string{"gate", "by"}),
		exposure: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    metricsPrefix + "exposure_seconds",
			Help:    "Time from the evidence that a Node should be armed until the guard had armed it, by gate and reason.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900},
		}, []string{"gate", "reason"}),
		conflictsTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricsPrefix + "conflicts_total",
			Help: "Writes that were decided anew because somebody else wrote the Node at the same time.",
		}),
		deniedTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricsPrefix + "denied_total",
			Help: "Writes that the API server denied: a right is missing, or a policy is in the way.",
		}),
		droppedTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricsPrefix + "events_dropped_total",
			Help: "Events that were not written because too many were waiting.",
		}),
		noDaemonSet: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metricsPrefix + "agent_daemonset_missing",
			Help: "1 if there is no DaemonSet of the gate's agent, so that nothing is armed for Expired and AgentAbsent; else 0.",
		}, []string{"gate"}),
		agentlessNodes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metricsPrefix + "agentless_nodes",
			Help: "Governed Nodes where no DaemonSet of the gate's agent can run a pod, so that they are never armed for Expired and AgentAbsent.",
		}, []string{"gate"}),
		tripped: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metricsPrefix + "breaker_tripped",
			Help: "1 while so many Nodes were armed for Expired and AgentAbsent that others have to wait; else 0.",
		}, []string{"gate"}),
		suspension: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: metricsPrefix + "expiry_suspended",
			Help: "1 while nothing is armed for Expired and AgentAbsent because nobody led, or the API server did not answer, for too long; else 0.",
		}),
	}
}

// Register makes the metrics known to a registry.
func (m *Metrics) Register(registry prometheus.Registerer) error {
	var faults []error
	for _, collector := range []prometheus.Collector{
		m.armedTotal, m.wouldArmTotal, m.seenArmedTotal, m.seenOpenedTotal, m.exposure, m.conflictsTotal, m.deniedTotal, m.droppedTotal,
		m.noDaemonSet, m.agentlessNodes, m.tripped, m.suspension,
	} {
		faults = append(faults, registry.Register(collector))
	}
	return errors.Join(faults...)
}

func (m *Metrics) armed(g *gate.Gate, reason Reason, exposure time.Duration) {
	if m != nil {
		m.armedTotal.WithLabelValues(g.Name, string(reason)).Inc()
		m.exposure.WithLabelValues(g.Name, string(reason)).Observe(max(0, exposure.Seconds()))
	}
}

func (m *Metrics) wouldArm(g *gate.Gate, reason Reason) {
	if m != nil {
		m.wouldArmTotal.WithLabelValues(g.Name, string(reason)).Inc()
	}
}

func (m *Metrics) saw(g *gate.Gate, c change) {
	switch {
	case m == nil:
	case c.armed:
		m.seenArmedTotal.WithLabelValues(g.Name, string(c.reason), string(c.by)).Inc()
	default:
		m.seenOpenedTotal.WithLabelValues(g.Name, string(c.by)).Inc()
	}
}

func (m *Metrics) conflict() {
	if m != nil {
		m.conflictsTotal.Inc()
	}
}

func (m *Metrics) deny() {
	if m != nil {
		m.deniedTotal.Inc()
	}
}

func (m *Metrics) eventDropped() {
	if m != nil {
		m.droppedTotal.Inc()
	}
}

func (m *Metrics) daemonSetMissing(g *gate.Gate, missing bool) {
	if m != nil {
		m.noDaemonSet.WithLabelValues(g.Name).Set(number(missing))
	}
}

func (m *Metrics) agentless(gateName string, count int) {
	if m != nil {
		m.agentlessNodes.WithLabelValues(gateName).Set(float64(count))
	}
}

func (m *Metrics) breakerTripped(gateName string, tripped bool) {
	if m != nil {
		m.tripped.WithLabelValues(gateName).Set(number(tripped))
	}
}

func (m *Metrics) suspended(suspended bool) {
	if m != nil {
		m.suspension.Set(number(suspended))
	}
}

// forget drops what is said of a gate that the configuration does not name any
// more. Counters stay: what was counted has happened.
func (m *Metrics) forget(gateName string) {
	if m == nil {
		return
	}
	for _, gauge := range []*prometheus.GaugeVec{m.noDaemonSet, m.agentlessNodes, m.tripped} {
		gauge.DeleteLabelValues(gateName)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
