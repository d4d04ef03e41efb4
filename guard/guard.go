package guard

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nodegate/nodegate/gate"
)

// Name is the guard's, among the controllers of a manager.
const Name = "guard"

const (
	// workers look at Nodes at the same time. A look is short unless it writes;
	// how many writes at a time are too many is for the API server's priority and
	// fairness to say.
	workers = 16

	// A Node whose write failed is tried again after minRetry, which doubles with
	// every failure up to maxRetry.
	minRetry = 50 * time.Millisecond
	maxRetry = 10 * time.Second
	// One that is denied is tried again after deniedRetry: who denies it is not in a
	// hurry, and of a whole fleet these are many.
	deniedRetry = 30 * time.Second
)

// Guard arms Nodes that are open against the rules of a gate. Client,
// AgentNamespace and Log are all it needs: then it guards the default gate, whose
// agent pods it finds by their label in AgentNamespace.
type Guard struct {
	Client client.Client
	// AgentNamespace is where the agent runs. It is not looked at where
	// Configuration is set, whose gates say so themselves.
	AgentNamespace string
	Log            *slog.Logger

	// Configuration returns the one in force, which must not be changed any more.
	// It is asked at every look. Default: the default gate, enforced.
	Configuration func() *gate.Configuration
	// Changed delivers a value when Configuration returns another one: every Node
	// is looked at again.
	Changed <-chan struct{}
	// Clock shows the API server's time. Default: local time.
	Clock clock.PassiveClock
	// InstalledAt is when nodegate was installed. Governed Nodes that were created
	// later are adopted: they went through admission or should have.
	//
	// If it is zero, the guard is used on its own, without admission and perhaps
	// with an agent that writes no heartbeat. Then AgentAbsent applies to every
	// governed Node, and where there is no agent DaemonSet, an agent pod on a node
	// shows that one belongs there.
	InstalledAt time.Time
	// Added says when gates were added to that installation, by their names, as far as
	// it is recorded: to them that is the time of installation. So is, to a gate that
	// comes while the guard runs, the time at which it is first seen.
	Added map[string]time.Time
	// Metrics count what the guard does. Default: none.
	Metrics *Metrics
	// Lease is the lock of the manager's leader election, if that was made by
	// [NewLease]: there the guard leaves what the one that follows must know. By it
	// it also sees that nobody led for a while, or that the API server did not
	// answer. Default: none of this is known.
	Lease *Lease
	// Events are written by it, each repetition counted. Default: the manager's.
	Events events.EventRecorder

	memory memory
	ages   ages
	silent silence
	term   term
	teller *teller
	// live reads past the cache, to decide anew after a conflict.
	live client.Reader
	// indexed says that the client finds pods by node.
	indexed bool
	// reconfigured has the fleet looked at, and the Lease brought up to date.
	reconfigured chan struct{}
}

var _ reconcile.Reconciler = (*Guard)(nil)

// NeedLeaderElection implements the manager's LeaderElectionRunnable: one guard
// acts at a time.
func (g *Guard) NeedLeaderElection() bool { return true }

// SetupWithManager registers the guard: it looks at Nodes when what it judges
// them by changes, and at a node when its agent pod or a DaemonSet does. The
// manager's cache should be built with [CacheOptions].
func (g *Guard) SetupWithManager(mgr ctrl.Manager) error {
	g.live = mgr.GetAPIReader()
	g.ages.begin(g.configuration().Gates, g.Added)
	g.reconfigured = make(chan struct{}, 1)
	if err := indexPods(mgr); err != nil {
		return err
	}
	g.indexed = true
	if g.Events == nil {
		g.Events = mgr.GetEventRecorder(gate.ManagerGuard)
	}
	g.teller = newTeller(g.Events, g.Metrics)
	for _, run := range []leaderRunnable{g.lead, g.teller.run} {
		if err := mgr.Add(run); err != nil {
			return fmt.Errorf("adding the guard to the manager: %w", err)
		}
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		WithOptions(controller.Options{
			NeedLeaderElection:      new(g.NeedLeaderElection()),
			EnableWarmup:            new(true),
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minRetry, maxRetry),
		}).
		Watches(&corev1.Node{}, g.nodeSeen(), builder.WithPredicates(nodeChanged())).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(nodeOfPod), builder.WithPredicates(podChanged())).
		Watches(&appsv1.DaemonSet{}, handler.EnqueueRequestsFromMapFunc(g.allNodes), builder.WithPredicates(daemonSetChanged())).
		WatchesRawSource(source.Func(g.watchConfiguration)).
		Complete(g)
}

// leaderRunnable runs while this replica leads.
type leaderRunnable func(context.Context) error

var _ manager.LeaderElectionRunnable = leaderRunnable(nil)

// Start implements [manager.Runnable].
func (run leaderRunnable) Start(ctx context.Context) error { return run(ctx) }

// NeedLeaderElection implements [manager.LeaderElectionRunnable].
func (leaderRunnable) NeedLeaderElection() bool { return true }

// configuration is the one in force.
func (g *Guard) configuration() *gate.Configuration {
	if g.Configuration != nil {
		return g.Configuration()
	}
	cfg := gate.Default()
	for i := range cfg.Gates {
		cfg.Gates[i].Agent.Namespace = g.AgentNamespace
	}
	return cfg
}

func (g *Guard) now() time.Time {
	if g.Clock == nil {
		return time.Now()
	}
	return g.Clock.Now()
}

func (g *Guard) log() *slog.Logger {
	if g.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return g.Log
}

// allNodes requests a look at every Node.
func (g *Guard) allNodes(ctx context.Context, _ client.Object) []reconcile.Request {
	var nodes corev1.NodeList
	if err := g.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		g.log().Error("Listing Nodes to look at all of them again", "error", err)
		return nil
	}
	requests := make([]reconcile.Request, len(nodes.Items))
	for i := range nodes.Items {
		requests[i].Name = nodes.Items[i].Name
	}
	return requests
}

// watchConfiguration requests a look at every Node when the configuration has
// changed.
func (g *Guard) watchConfiguration(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	if g.Changed == nil {
		return nil
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-g.Changed:
				if !ok {
					return
				}
				for _, request := range g.allNodes(ctx, nil) {
					queue.Add(request)
				}
				select {
				case g.reconfigured <- struct{}{}:
				default:
				}
			}
		}
	}()
	return nil
}
