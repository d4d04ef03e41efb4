package guard_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/guard"
	"github.com/nodegate/nodegate/internal/apiclock"
	"github.com/nodegate/nodegate/test/cluster"
)

// replica runs a guard with leader election, and another whenever one ends, as a
// kubelet does, until the context ends.
func replica(ctx context.Context, reach *rest.Config, cfg *gate.Configuration) error {
	for ctx.Err() == nil {
		run, err := newReplica(reach, cfg)
		if err == nil {
			err = run(ctx)
		}
		if err == nil {
			continue
		}
		select { // the API server is away
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
	return nil
}

func newReplica(reach *rest.Config, cfg *gate.Configuration) (func(context.Context) error, error) {
	reach = rest.CopyConfig(reach)
	clock := apiclock.New()
	reach.Wrap(clock.Wrap)
	lease, err := guard.NewLease(reach, gate.Namespace, gate.ControllerLease, clock)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(reach, ctrl.Options{
		Cache:                               guard.CacheOptions(cfg),
		Metrics:                             metricsserver.Options{BindAddress: "0"},
		Controller:                          config.Controller{SkipNameValidation: new(true)},
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lease,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       new(guard.LeaseDuration),
		RenewDeadline:                       new(guard.RenewDeadline),
		RetryPeriod:                         new(guard.RetryPeriod),
	})
	if err != nil {
		return nil, err
	}
	g := &guard.Guard{
		Client: mgr.GetClient(), Log: slog.New(slog.DiscardHandler), Clock: clock, Lease: lease,
		Configuration: func() *gate.Configuration { return cfg },
		InstalledAt:   time.Now().Add(-time.Hour),
	}
	return mgr.Start, g.SetupWithManager(mgr)
}

// fleet are Nodes whose agents write heartbeats, and nothing else.
type fleet struct {
	client client.Client
	ttl    time.Duration
	nodes  []*corev1.Node

	mu   sync.Mutex
	dead map[string]bool
}

func newFleet(t *testing.T, admin client.Client, ttl time.Duration, size int) *fleet {
	t.Helper()
	f := &fleet{client: admin, ttl: ttl, dead: map[string]bool{}}
	for i := range size {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{
			"kubernetes.io/os": "linux", gate.ExemptLabel: "true",
		}}}
		if err := admin.Create(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		status := fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q}}}`, boot)
		if err := admin.Status().Patch(t.Context(), node, client.RawPatch(types.MergePatchType, status)); err != nil {
			t.Fatal(err)
		}
		f.nodes = append(f.nodes, node)
	}
	return f
}

// beat writes a heartbeat of one agent that lives.
func (f *fleet) beat(ctx context.Context, node *corev1.Node) error {
	f.mu.Lock()
	dead := f.dead[node.Name]
	f.mu.Unlock()
	if dead {
		return nil
	}
	value, err := gate.Heartbeat{
		Ready: true, Time: time.Now().Truncate(time.Second), TTL: f.ttl, BootID: boot, NodeUID: node.UID,
	}.Format()
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null},"annotations":{%q:%q}}}`,
		gate.ExemptLabel, gate.HeartbeatPrefix+gate.DefaultName, value)
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	return f.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch))
}

// live runs the agents until the context ends: each writes every so often, whether
// or not anything comes of it.
func (f *fleet) live(ctx context.Context, interval time.Duration) {
	var wg sync.WaitGroup
	for i, node := range f.nodes {
		wg.Go(func() {
			wait := time.Duration(i) * interval / time.Duration(len(f.nodes))
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(wait):
				}
				_ = f.beat(ctx, node) // the next one follows
				wait = interval
			}
		})
	}
	wg.Wait()
}

func (f *fleet) kill(node *corev1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead[node.Name] = true
}

// TestGuard_SurvivesAnOutage: no agent could write, and when the API server is back
// every heartbeat has expired. No Node is armed for that, but that
// of the one agent that has died.
func TestGuard_SurvivesAnOutage(t *testing.T) {
	t.Parallel()
	const (
		ttl      = 20 * time.Second
		interval = 3 * time.Second
		outage   = ttl + 10*time.Second
	)
	c := cluster.ForTest(t)
	wire, err := cluster.NewWire(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Cut)
	reach := wire.Config(c.Admin)
	agents, err := client.New(reach, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := &environment{config: c.Admin, cfg: gate.Default()}
	if e.admin, err = client.NewWithWatch(c.Admin, client.Options{}); err != nil {
		t.Fatal(err)
	}
	e.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gate.Namespace}})
	e.create(t, daemonSet())

	f := newFleet(t, e.admin, ttl, 40)
	f.client = agents
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, node := range f.nodes {
		if err := f.beat(ctx, node); err != nil {
			t.Fatal(err)
		}
	}
	wg.Go(func() { f.live(ctx, interval) })
	for range 2 {
		wg.Go(func() { _ = replica(ctx, reach, gate.Default()) })
	}
	notice := func() string { return e.lease(t).Annotations[gate.SuspendedAnnotation] }
	eventually(t, "the first guard to tell that nobody led before", func() bool {
		return strings.Contains(notice(), "nobody has led before")
	})
	eventually(t, "the suspension to end", func() bool { return notice() == "" })

	wire.Cut()
	select {
	case <-t.Context().Done():
		return
	case <-time.After(outage):
	}
	expectArmed(t, e.admin)
	f.kill(f.nodes[17])
	if err := wire.Mend(); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	eventually(t, "the suspension to be told", func() bool { return strings.Contains(notice(), "nobody led") })
	t.Logf("suspended %s after the API server was back: %s", time.Since(back), notice())
	e.await(t, f.nodes[17], gate.DefaultGate().Armed)
	t.Logf("the agent that has died is noticed %s after the API server was back", time.Since(back))
	eventually(t, "the suspension to end", func() bool { return notice() == "" })
	expectArmed(t, e.admin, f.nodes[17].Name)
	e.expectEvent(t, gate.Namespace, gate.ControllerLease, "ExpirySuspended")
	if value := e.lease(t).Annotations[gate.BreakerPrefix+gate.DefaultName]; !strings.HasPrefix(value, "armed=") {
		t.Errorf("the Lease tells of the breaker: %q", value)
	}
}

func (e *environment) lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: gate.Namespace, Name: gate.ControllerLease}
	if err := client.IgnoreNotFound(e.admin.Get(t.Context(), key, lease)); err != nil {
		t.Fatal(err)
	}
	return lease
}

// expectEvent waits for the Event of a reason on an object and returns all of them.
func (e *environment) expectEvent(t *testing.T, namespace, object, reason string) []corev1.Event {
	t.Helper()
	var found []corev1.Event
	eventually(t, fmt.Sprintf("an Event %s on %s", reason, object), func() bool {
		var list corev1.EventList
		if err := e.admin.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		found = nil
		for _, event := range list.Items {
			if event.InvolvedObject.Name == object && event.Reason == reason {
				found = append(found, event)
			}
		}
		return len(found) > 0
	})
	return found
}

func expectArmed(t *testing.T, admin client.Client, want ...string) {
	t.Helper()
	var nodes corev1.NodeList
	if err := admin.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range nodes.Items {
		if gate.DefaultGate().Armed(&nodes.Items[i]) {
			got = append(got, nodes.Items[i].Name)
		}
	}
	if len(got) != len(want) || len(want) > 0 && got[0] != want[0] {
		t.Errorf("armed are %v, want %v", got, want)
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := cluster.Await(t.Context(), func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}
