package guard

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodegate/nodegate/gate"
)

// attempts is how often a Node that others write at the same time is read anew
// and decided on, at once, before it waits its turn again.
const attempts = 5

// step is the decision on one gate of a Node, and what it rests on.
type step struct {
	in input
	decision
	// reserved says that the breaker has counted the arming.
	reserved bool
}

// Reconcile looks at one Node: it gathers what there is to know, decides for
// every gate, and arms where it must.
func (g *Guard) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if err := g.begin(ctx); err != nil {
		return reconcile.Result{}, err
	}
	node := &corev1.Node{}
	if err := g.Client.Get(ctx, request.NamespacedName, node); err != nil {
		return g.gone(request.Name, err)
	}
	unseen := g.memory.unseenSince(node)
	for attempt := 1; ; attempt++ {
		cfg := g.configuration()
		steps, err := g.decideAll(ctx, node, cfg.Gates)
		if err != nil {
			return reconcile.Result{}, err
		}
		err = g.act(ctx, node, cfg.Mode, steps, unseen)
		if err == nil {
			g.memory.seen(node, unseen)
			return g.nextLook(steps), nil
		}
		if denied(err) {
			g.Metrics.deny()
			g.log().Error("Node cannot be armed", "node", node.Name, "error", err)
			return reconcile.Result{RequeueAfter: deniedRetry}, nil
		}
		if !apierrors.IsConflict(err) || attempt == attempts {
			return g.gone(request.Name, err)
		}
		g.Metrics.conflict()
		if err := g.readAnew(ctx, node); err != nil {
			return g.gone(request.Name, err)
		}
	}
}

// gone forgets a Node that is not there any more, and passes on every other
// error.
func (g *Guard) gone(node string, err error) (reconcile.Result, error) {
	if apierrors.IsNotFound(err) {
		g.memory.forget(node)
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

// readAnew reads the Node past the cache, which may not have caught up yet with
// the write that was in the way.
func (g *Guard) readAnew(ctx context.Context, node *corev1.Node) error {
	var reader client.Reader = g.Client
	if g.live != nil {
		reader = g.live
	}
	name := node.Name
	*node = corev1.Node{}
	if err := reader.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return fmt.Errorf("reading node %q: %w", name, err)
	}
	return nil
}

func (g *Guard) decideAll(ctx context.Context, node *corev1.Node, gates []gate.Gate) ([]step, error) {
	now := g.now()
	steps := make([]step, 0, len(gates))
	for i := range gates {
		in, err := g.gather(ctx, node, &gates[i], now)
		if err != nil {
			return nil, err
		}
		steps = append(steps, step{in: in, decision: decide(in)})
	}
	return steps, nil
}

// nextLook is when time alone may change a decision.
func (g *Guard) nextLook(steps []step) reconcile.Result {
	var next time.Time
	for _, s := range steps {
		next = earlier(next, s.lookAgain)
	}
	if next.IsZero() {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: max(next.Sub(g.now()), time.Nanosecond)}
}
