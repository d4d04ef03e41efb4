package webhook

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nodegate/nodegate/gate"
)

const metricsPrefix = gate.MetricsPrefix + "webhook_"

// none is the label's value where nothing was done, or nothing judged.
const none = "None"

// Metrics count what the webhook answers. A nil one counts nothing.
type Metrics struct {
	decisionsTotal *prometheus.CounterVec
	refusedTotal   prometheus.Counter
	duration       prometheus.Histogram
}

// NewMetrics returns metrics that no registry knows yet.
func NewMetrics() *Metrics {
	return &Metrics{
		decisionsTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricsPrefix + "decisions_total",
			Help: "Writes that were judged, by gate, by the cause for which the taint was added (None if it was not), and by the heartbeat's verdict (None if it was not asked).",
		}, []string{"gate", "cause", "verdict"}),
		refusedTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: metricsPrefix + "refused_total",
			Help: "Requests that were not about a Node, and so failed.",
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    metricsPrefix + "duration_seconds",
			Help:    "Time to answer, without the network.",
			Buckets: prometheus.ExponentialBuckets(0.00005, 4, 8),
		}),
	}
}

// Register makes the metrics known to a registry.
func (m *Metrics) Register(registry prometheus.Registerer) error {
	return errors.Join(
		registry.Register(m.decisionsTotal),
		registry.Register(m.refusedTotal),
		registry.Register(m.duration),
	)
}

func (m *Metrics) decided(g *gate.Gate, d gate.Decision) {
	if m == nil {
		return
	}
	cause, verdict := string(d.Cause), string(d.Verdict)
	if cause == "" {
		cause = none
	}
	if verdict == "" {
		verdict = none
	}
	m.decisionsTotal.WithLabelValues(g.Name, cause, verdict).Inc()
}

func (m *Metrics) refused() {
	if m != nil {
		m.refusedTotal.Inc()
	}
}

func (m *Metrics) took(d time.Duration) {
	if m != nil {
		m.duration.Observe(d.Seconds())
	}
}
