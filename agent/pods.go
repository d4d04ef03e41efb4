package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/hold"
	"github.com/nodegate/nodegate/internal/netconf"
)

// podKeeper says which pods of this node wait, though they are bound to it.
//
// It goes by what the checks say in this process, and so in this boot, and not by
// the Node's taint: the taint is for schedulers, follows from the checks, and can
// neither be read nor removed while the API server is away.
type podKeeper struct {
	agent *Agent
	mode  func() gate.Mode
	pods  *podLookup
}

var _ hold.Keeper = (*podKeeper)(nil)

// Changed implements [hold.Keeper].
func (k *podKeeper) Changed() <-chan struct{} { return k.agent.bell.next() }

// Holds implements [hold.Keeper]. A pod waits for each closed gate that would have
// kept it from being scheduled here. Whether one would is not known without the
// API server: then it waits.
func (k *podKeeper) Holds(ctx context.Context, pod netconf.Pod, began time.Time) (again bool, reason error) {
	if k.mode() != gate.ModeEnforce {
		return false, nil
	}
	closed := k.agent.closedGates(began)
	if len(closed) == 0 {
		return false, nil
	}
	passes, err := k.pods.find(ctx, pod)
	var reasons []string
	for _, c := range closed {
		if err != nil || !passes[c.gate] {
			reasons = append(reasons, c.reason)
			again = again || c.again
		}
	}
	switch {
	case len(reasons) == 0:
		return false, nil
	case errors.Is(err, errNotAsked):
		again = false // it may yet be one that passes
	case err != nil:
		reasons = append(reasons, "whether the pod tolerates that is not known: "+err.Error())
	}
	return again, errors.New(strings.Join(reasons, "; "))
}

// closedGate is a gate that holds pods, and why.
type closedGate struct {
	gate   *gate.Gate
	reason string
	// again: it is closed to this attempt, whatever happens.
	again bool
}

// closedGates are those that are closed to a pod with whose network the runtime
// began at a time.
func (a *Agent) closedGates(began time.Time) []closedGate {
	node := a.node()
	var closed []closedGate
	for _, g := range a.gates {
		if node != nil && (!g.gate.Governs(node) || gate.Judge(node, g.gate, a.api.Now()) == gate.Bypassed) {
			continue
		}
		if failing, again := g.failingChecks(node, began); len(failing) > 0 {
			reason := fmt.Sprintf("gate %q is closed: %s", g.gate.Name, strings.Join(failing, "; "))
			closed = append(closed, closedGate{g.gate, reason, again})
		}
	}
	return closed
}

// failingChecks are those that keep pods from starting. One that wavers does so no
// earlier than it closes the gate, but to a pod that would do without what it checks.
func (g *running) failingChecks(node *corev1.Node, began time.Time) (failing []string, again bool) {
	open := node != nil && !g.gate.Armed(node)
	for _, p := range g.probers {
		answers := p.remembered()
		overtaken, missed := p.missed(began)
		again = again || overtaken
		switch state := answers.state(p.Dwell, false); {
		case state == Passing, state == Wavering && open:
			if missed != nil {
				failing = append(failing, fmt.Sprintf("check %s: %s", p.Name, missed))
			}
		case state == Unknown:
			failing = append(failing, fmt.Sprintf("check %s has not answered yet", p.Name))
		default:
			failing = append(failing, fmt.Sprintf("check %s: %s", p.Name, answers.reason))
		}
	}
	return failing, again
}

// passes are the gates for which a pod need not wait.
type passes map[*gate.Gate]bool

// podPasses reports whether the pod need not wait for the gate: it tolerates the
// taint, is the agent that opens the gate, or one that the gate looks at.
func podPasses(pod *corev1.Pod, g *gate.Gate) bool {
	taints := []corev1.Taint{{Key: g.Taint.Key, Value: g.Taint.Value, Effect: g.Taint.Effect}}
	_, hindered := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), taints, pod.Spec.Tolerations, func(*corev1.Taint) bool { return true }, true)
	if !hindered || pod.Namespace == g.Agent.Namespace && labels.SelectorFromSet(g.Agent.PodLabels).Matches(labels.Set(pod.Labels)) {
		return true
	}
	for _, check := range g.Checks {
		if check.Pod == nil || check.Pod.Namespace != pod.Namespace {
			continue
		}
		if selector, err := metav1.LabelSelectorAsSelector(check.Pod.Selector); err == nil && selector.Matches(labels.Set(pod.Labels)) {
			return true
		}
	}
	return false
}

// bell rings for everybody who waits.
type bell struct {
	mu    sync.Mutex
	waits chan struct{}
}

// next is closed when the bell rings the next time.
func (b *bell) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waits == nil {
		b.waits = make(chan struct{})
	}
	return b.waits
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waits != nil {
		close(b.waits)
		b.waits = nil
	}
}
