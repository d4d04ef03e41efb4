package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// Check tests one thing that a node needs in order to serve.
type Check interface {
	// Check returns nil while it serves, else why not: one line, for people. It
	// should return when the context ends; one that does not counts as failing
	// and delays nothing but itself.
	//
	// The Node is the agent's own as last seen, and must not be changed. It is nil
	// before it was first seen and while there is none: a check that needs it then
	// returns [ErrNoNode].
	Check(ctx context.Context, node *corev1.Node) error
}

// ErrNoNode is no answer: the check can tell nothing without the Node.
var ErrNoNode = errors.New("the Node is not known")

// CheckFunc is a function that is a [Check] and needs no Node.
type CheckFunc func(ctx context.Context) error

// Check implements [Check].
func (f CheckFunc) Check(ctx context.Context, _ *corev1.Node) error { return f(ctx) }

// attached is a check that needs the agent's client or clocks. It is told once,
// before it is asked.
type attached interface{ attach(*Agent) }

// follower is a check that follows something until the context ends.
type follower interface{ follow(ctx context.Context) }

// noticing is a check that notices by itself that its answer is another by now. It
// is told once, before it is asked, where it logs, whose events are counted if
// anybody counts them, and how it is asked again.
type noticing interface {
	notice(log *slog.Logger, events *prometheus.CounterVec, again func())
}

// missing is a check of what must have been there when the runtime began with a pod.
// It says why it was not, or may not have been, for one with which the runtime began
// at a time, and whether it is there now, and so for the next attempt.
type missing interface {
	missed(began time.Time) (again bool, reason error)
}

// restarting is a check that may find that it cannot pass before the process
// starts again.
type restarting interface{ restartFor() error }

// Probe is a check and how its answers are taken.
type Probe struct {
	// Name tells it from the gate's others, in heartbeats, logs and metrics. It is
	// a DNS label.
	Name  string
	Check Check
	// Dwell is how long the check must keep failing before it counts as failing.
	Dwell time.Duration
	// Timeout bounds one answer.
	Timeout time.Duration
}

// Gate is a gate and what opens it.
type Gate struct {
	*gate.Gate
	// Probes must all pass. A gate without any would open on nothing.
	Probes []Probe
}

// FromConfiguration returns the gate with the checks that its configuration
// names. It fills in what the gate leaves to defaults, and names every fault.
// Checks of one's own are appended to the probes.
func FromConfiguration(g *gate.Gate) (Gate, error) {
	g.SetDefaults()
	if faults := g.Validate(); len(faults) > 0 {
		return Gate{}, fmt.Errorf("gate %q: %w", g.Name, faults.ToAggregate())
	}
	result := Gate{Gate: g}
	for i := range g.Checks {
		c := &g.Checks[i]
		check, err := newCheck(c)
		if err != nil {
			return Gate{}, fmt.Errorf("check %q of gate %q: %w", c.Name, g.Name, err)
		}
		result.Probes = append(result.Probes, Probe{
			Name: c.Name, Check: check, Dwell: c.Dwell.Duration, Timeout: c.Timeout.Duration,
		})
	}
	return result, nil
}

func newCheck(c *gate.Check) (Check, error) {
	switch {
	case c.Socket != nil:
		return newSocketCheck(*c.Socket)
	case c.Conflist != nil:
		return ConflistCheck(*c.Conflist), nil
	case c.HTTP != nil:
		return newHTTPCheck(*c.HTTP), nil
	case c.GRPC != nil:
		return newGRPCCheck(*c.GRPC), nil
	case c.File != nil:
		return newFileCheck(*c.File), nil
	case c.Pod != nil:
		return newPodCheck(*c.Pod)
	case c.NodeCondition != nil:
		return newNodeConditionCheck(*c.NodeCondition), nil
	}
	return nil, errors.New("its kind is not known to this version")
}
