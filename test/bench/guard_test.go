package bench

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/guard"
	"github.com/nodegate/nodegate/internal/apiclock"
	"github.com/nodegate/nodegate/test/cluster"
)

// BenchmarkGuard_NewBoot measures how long a rebooted Node is open: from the
// moment at which a kubelet sends its new boot id until a watch shows the taint.
func BenchmarkGuard_NewBoot(b *testing.B) {
	ctrl.SetLogger(logr.Discard())
	c := cluster.ForTest(b)
	runGuard(b, c)
	admin, err := client.NewWithWatch(c.Admin, client.Options{})
	if err != nil {
		b.Fatal(err)
	}
	nodes, err := admin.Watch(b.Context(), &corev1.NodeList{})
	if err != nil {
		b.Fatal(err)
	}
	defer nodes.Stop()
	reboot := func(name string) time.Duration {
		b.StopTimer()
		node := openNode(b, admin, name)
		b.StartTimer()
		began := time.Now()
		reportBoot(b, admin, node, "0f3c9c54-7d0e-4a53-9d0b-6a2f7a1b5e11")
		awaitArmed(b, nodes, node.Name)
		return time.Since(began)
	}
	// The first one waits for the guard to start.
	reboot("first")
	var took []time.Duration
	for b.Loop() {
		took = append(took, reboot(fmt.Sprintf("node-%d", len(took))))
	}
	slices.Sort(took)
	b.ReportMetric(milliseconds(took[len(took)/2]), "p50-ms")
	b.ReportMetric(milliseconds(took[len(took)*99/100]), "p99-ms")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func runGuard(b *testing.B, c *cluster.Cluster) {
	b.Helper()
	clock := apiclock.New()
	c.Admin.Wrap(clock.Wrap)
	mgr, err := ctrl.NewManager(c.Admin, ctrl.Options{
		Cache:      guard.CacheOptions(gate.Default()),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		b.Fatal(err)
	}
	g := &guard.Guard{
		Client: mgr.GetClient(), AgentNamespace: gate.Namespace, Log: slog.New(slog.DiscardHandler),
		Clock: clock, InstalledAt: time.Now(),
	}
	if err := g.SetupWithManager(mgr); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	b.Cleanup(func() {
		cancel()
		<-done
	})
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		b.Fatal("the cache did not fill")
	}
}

// openNode creates a Node that is open by a fresh heartbeat.
func openNode(b *testing.B, admin client.Client, name string) *corev1.Node {
	b.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.io/os": "linux", gate.ExemptLabel: "true",
	}}}
	if err := admin.Create(b.Context(), node); err != nil {
		b.Fatal(err)
	}
	const boot = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	reportBoot(b, admin, node, boot)
	heartbeat, err := gate.Heartbeat{
		Ready: true, Time: time.Now().Truncate(time.Second), TTL: gate.MaxTTL, BootID: boot, NodeUID: node.UID,
	}.Format()
	if err != nil {
		b.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:null},"annotations":{%q:%q}}}`,
		gate.ExemptLabel, gate.DefaultGate().HeartbeatAnnotation(), heartbeat)
	if err := admin.Patch(b.Context(), node, client.RawPatch(types.MergePatchType, patch)); err != nil {
		b.Fatal(err)
	}
	return node
}

func reportBoot(b *testing.B, admin client.Client, node *corev1.Node, id string) {
	b.Helper()
	status := fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q}}}`, id)
	if err := admin.Status().Patch(b.Context(), node.DeepCopy(), client.RawPatch(types.MergePatchType, status)); err != nil {
		b.Fatal(err)
	}
}

func awaitArmed(b *testing.B, nodes watch.Interface, name string) {
	b.Helper()
	g := gate.DefaultGate()
	for event := range nodes.ResultChan() {
		if node, ok := event.Object.(*corev1.Node); ok && node.Name == name && g.Armed(node) {
			return
		}
	}
	b.Fatalf("the watch ended before node %s was armed", name)
}
