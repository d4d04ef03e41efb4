package agent

import (
	"fmt"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/apiclock"
)

const metricsPrefix = gate.MetricsPrefix + "agent_"

// Values of the label result.
const (
	resultOpened  = "opened"
	resultPutBack = "put_back"
)

// metrics are those of one agent.
type metrics struct {
	checkState  *prometheus.GaugeVec
	transitions *prometheus.CounterVec
	ready       *prometheus.GaugeVec
	armed       *prometheus.GaugeVec
	heartbeats  *prometheus.CounterVec
	openings    *prometheus.CounterVec
	writeErrors *prometheus.CounterVec
	clockOffset prometheus.GaugeFunc
	conflist    *prometheus.CounterVec
	waitingPods prometheus.Gauge
}

func newMetrics(clock *apiclock.Clock) *metrics {
	m := &metrics{
		checkState: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metricsPrefix + "check_state",
			Help: "1 for the state that a check is in, 0 for the others.",
		}, []string{"gate", "check", "state"}),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "check_transitions_total",
			Help: "Times that a check came into a state.",
		}, []string{"gate", "check", "state"}),
		ready: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metricsPrefix + "gate_ready",
			Help: "1 while the node serves, which is what the heartbeat and the readiness endpoint say.",
		}, []string{"gate"}),
		armed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metricsPrefix + "gate_armed",
			Help: "1 while the Node carries the gate's taint.",
		}, []string{"gate"}),
		heartbeats: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "heartbeats_written_total",
			Help: "Heartbeats written to the Node.",
		}, []string{"gate", "ready"}),
		openings: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "openings_total",
			Help: "Writes that remove the gate's taint: after them it was gone, or admission had put it back.",
		}, []string{"gate", "result"}),
		writeErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "write_errors_total",
			Help: "Writes to the Node that failed.",
		}, []string{"reason"}),
		conflist: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "conflist_events_total",
			Help: "Times that another writer took the plugin out of the CNI configuration (stripped), that it was mended (by what was mended), and that this failed.",
		}, []string{"gate", "check", "event"}),
		waitingPods: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: metricsPrefix + "waiting_pods",
			Help: "Pods bound to this node whose CNI plugin waits for a gate to open.",
		}),
		clockOffset: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: metricsPrefix + "clock_offset_seconds",
			Help: "How far the API server's clock is ahead of the node's; 0 until the API server has answered.",
		}, func() float64 { offset, _ := clock.Offset(); return offset.Seconds() }),
	}
	for _, reason := range failures() {
		m.writeErrors.WithLabelValues(string(reason))
	}
	return m
}

// RegisterMetrics adds the agent's metrics to a registry.
func (a *Agent) RegisterMetrics(registry prometheus.Registerer) error {
	m := a.metrics
	for _, collector := range []prometheus.Collector{m.checkState, m.transitions, m.ready, m.armed,
		m.heartbeats, m.openings, m.writeErrors, m.clockOffset, m.conflist, m.waitingPods} {
		if err := registry.Register(collector); err != nil {
			return fmt.Errorf("registering metrics: %w", err)
		}
	}
	return nil
}

// expect shows a gate's counters before they first count.
func (m *metrics) expect(gate string) {
	for _, ready := range []bool{true, false} {
		m.heartbeats.WithLabelValues(gate, strconv.FormatBool(ready))
	}
	for _, result := range []string{resultOpened, resultPutBack} {
		m.openings.WithLabelValues(gate, result)
	}
}

// show sets what a scrape shows of a verdict.
func (m *metrics) show(v verdict) {
	m.ready.WithLabelValues(v.gate.Name).Set(number(v.ready))
	m.armed.WithLabelValues(v.gate.Name).Set(number(v.armed))
	for _, check := range v.checks {
		for _, state := range States() {
			m.checkState.WithLabelValues(v.gate.Name, check.name, string(state)).Set(number(check.state == state))
		}
	}
}

// wait shows how many pods wait.
func (m *metrics) wait(pods int) { m.waitingPods.Set(float64(pods)) }

// wrote counts a gate's part of a write.
func (m *metrics) wrote(w gateWrite, putBack bool) {
	m.heartbeats.WithLabelValues(w.gate.Name, strconv.FormatBool(w.ready)).Inc()
	switch {
	case putBack:
		m.openings.WithLabelValues(w.gate.Name, resultPutBack).Inc()
	case w.opens:
		m.openings.WithLabelValues(w.gate.Name, resultOpened).Inc()
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
