//go:build linux

package fleet

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/world"
)

var (
	size   = flag.Int("nodes", 5000, "Nodes of the large cluster")
	period = flag.Duration("period", 5*time.Minute, "in which every kubelet and every agent reports once")
	reboot = flag.Int("reboots", 200, "Nodes that reboot one after the other")
)

const patience = 10 * time.Minute

var (
	// large is the cluster that all but one of the benchmarks share.
	large *fleet
	// shared is a folder for what they share.
	shared string
)

func TestMain(m *testing.M) {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	var err error
	if shared, err = os.MkdirTemp("", "fleet"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(shared) }()
	code := m.Run()
	if large != nil {
		_ = large.Stop()
	}
	return code
}

// theLarge starts the large cluster, if it does not run yet, and puts every Node
// back.
func theLarge(b *testing.B) *fleet {
	b.Helper()
	if large == nil {
		var err error
		if large, err = newFleet(b.Context(), shared, *size); err != nil {
			b.Fatal(err)
		}
	}
	if err := large.put(b.Context(), large.size, boot); err != nil {
		b.Fatal(err)
	}
	return large
}

// build builds the program once.
var build = sync.OnceValues(func() (string, error) {
	return filepath.Join(shared, "nodegate-controller"), world.Build(context.Background(), shared) //nolint:forbidigo // it is of no single benchmark
})

// run starts a controller, ended with the benchmark, and waits until it guards.
func run(b *testing.B, f *fleet) (*controller, time.Duration) {
	b.Helper()
	program, err := build()
	if err != nil {
		b.Fatal(err)
	}
	c, took, err := start(b.Context(), program, f.kubeconfig)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.kill)
	return c, took
}

// guards waits until somebody guards.
func (f *fleet) guards(ctx context.Context) error {
	return cluster.Await(ctx, func(ctx context.Context) (bool, error) {
		lease, err := f.admin.CoordinationV1().Leases(gate.Namespace).Get(ctx, gate.ControllerLease, metav1.GetOptions{})
		return err == nil && lease.Spec.HolderIdentity != nil && time.Since(lease.Spec.RenewTime.Time) < time.Second, err
	})
}

// pause lets the cluster come to rest, or do some of what is measured.
func pause(b *testing.B, d time.Duration) {
	select {
	case <-b.Context().Done():
	case <-time.After(d):
	}
}

func once(b *testing.B, run func()) {
	b.Helper()
	for b.Loop() {
		run()
	}
	b.ReportMetric(0, "ns/op") // a run is more than what is measured of it
}

// BenchmarkCost is what a guard costs a cluster in which nothing goes wrong, for two
// sizes: memory, time to be ready, and processor time while all report.
func BenchmarkCost(b *testing.B) {
	for _, nodes := range []int{max(1, *size/10), *size} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			f := theLarge(b)
			if nodes != f.size {
				small, err := newFleet(b.Context(), b.TempDir(), nodes)
				if small != nil {
					b.Cleanup(func() { _ = small.Stop() })
				}
				if err != nil {
					b.Fatal(err)
				}
				f = small
			}
			once(b, func() { cost(b, f) })
		})
	}
}

func cost(b *testing.B, f *fleet) {
	const observed = time.Minute
	c, ready := run(b, f)
	defer c.kill()
	if err := f.guards(b.Context()); err != nil {
		b.Fatal(err)
	}
	pause(b, 10*time.Second) // what it has to throw away is thrown away in the course of its work
	now, most, err := c.memory()
	if err != nil {
		b.Fatal(err)
	}
	before, err := c.cpu()
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), observed)
	defer cancel()
	writes := f.report(ctx, *period)
	after, err := c.cpu()
	if err != nil {
		b.Fatal(err)
	}
	reporting, _, err := c.memory()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(ready.Seconds(), "s-to-ready")
	b.ReportMetric(now, "MiB")
	b.ReportMetric(most, "MiB-at-most")
	b.ReportMetric(reporting, "MiB-reporting")
	b.ReportMetric(now*1024/float64(f.size), "KiB/node")
	b.ReportMetric(float64((after-before).Milliseconds())/observed.Seconds(), "cpu-ms/s")
	b.ReportMetric(float64((after-before).Microseconds())/float64(writes), "cpu-us/report")
}

// BenchmarkStorm has many Nodes change their boot id at once, and compares the time
// until all are armed with that of as many bare patches: alone, and while as many
// Nodes change their boot id, which takes its share of the machine.
func BenchmarkStorm(b *testing.B) {
	for _, nodes := range []int{*size / 5, *size} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			f := theLarge(b)
			once(b, func() {
				reboot, err := f.prepare(nodes, nextBoot)
				if err != nil {
					b.Fatal(err)
				}
				floor := f.floor(b, nodes, func(context.Context) error { return nil })
				rebooting := f.floor(b, nodes, reboot)
				if err := f.put(b.Context(), nodes, boot); err != nil {
					b.Fatal(err)
				}
				c, _ := run(b, f)
				if err := f.guards(b.Context()); err != nil {
					b.Fatal(err)
				}
				pause(b, 5*time.Second) // it has looked at every Node
				took := storm(b, reboot, c, nodes)
				c.kill()
				b.ReportMetric(took.Seconds(), "s")
				b.ReportMetric(floor.Seconds(), "s-floor")
				b.ReportMetric(rebooting.Seconds(), "s-floor-rebooting")
				b.ReportMetric(took.Seconds()/floor.Seconds(), "ratio")
				b.ReportMetric(took.Seconds()/rebooting.Seconds(), "ratio-rebooting")
				if err := f.put(b.Context(), nodes, boot); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// storm is the time from the first new boot id until all Nodes are armed.
func storm(b *testing.B, reboot func(context.Context) error, c *controller, nodes int) time.Duration {
	b.Helper()
	before, err := c.cpu()
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	if err := reboot(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(time.Since(began).Seconds(), "s-to-reboot")
	for {
		armed, err := c.counter(b.Context(), "nodegate_guard_armed_total", `reason="OtherBoot"`)
		if err != nil {
			b.Fatal(err)
		}
		if armed >= nodes {
			took := time.Since(began)
			if after, err := c.cpu(); err == nil {
				b.ReportMetric(float64((after-before).Microseconds())/float64(nodes), "cpu-us/node")
			}
			return took
		}
		if time.Since(began) > patience {
			b.Fatalf("armed %d of %d Nodes", armed, nodes)
		}
		pause(b, 50*time.Millisecond) // asking takes its time, too
	}
}

// floor is how long as many bare patches take the fastest of some numbers of
// workers, who read nothing of the answers, while something else is done.
func (f *fleet) floor(b *testing.B, nodes int, meanwhile func(context.Context) error) time.Duration {
	b.Helper()
	best := time.Duration(0)
	for _, workers := range []int{8, 16, 32} {
		if err := f.put(b.Context(), nodes, boot); err != nil {
			b.Fatal(err)
		}
		took := f.patchAll(b, nodes, workers, meanwhile)
		if best == 0 || took < best {
			best = took
		}
	}
	return best
}

func (f *fleet) patchAll(b *testing.B, nodes, workers int, meanwhile func(context.Context) error) time.Duration {
	b.Helper()
	// The kind of patch that costs the API server least.
	patch := fmt.Appendf(nil, `{"spec":{"taints":[{"key":%q,"effect":"NoSchedule"}]}}`, gate.DefaultTaintKey)
	var wg sync.WaitGroup
	work := make(chan int)
	began := time.Now()
	wg.Go(func() {
		if err := meanwhile(b.Context()); err != nil {
			b.Error(err)
		}
	})
	for range workers {
		wg.Go(func() {
			for i := range work {
				if err := barePatch(b.Context(), f.admin.CoreV1().RESTClient(), nodeName(i), patch); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range nodes {
		work <- i
	}
	close(work)
	wg.Wait()
	return time.Since(began)
}

func barePatch(ctx context.Context, api rest.Interface, node string, patch []byte) error {
	return api.Patch(types.StrategicMergePatchType).Resource("nodes").Name(node).Body(patch).Do(ctx).Error()
}

// BenchmarkOne reboots one Node of many while the others report: the time from its
// kubelet's write until a watch shows the taint.
func BenchmarkOne(b *testing.B) {
	f := theLarge(b)
	run(b, f)
	if err := f.guards(b.Context()); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	wg.Go(func() { f.report(ctx, *period) })
	defer wg.Wait()
	defer cancel()
	once(b, func() {
		var took []time.Duration
		for i := range *reboot {
			took = append(took, f.rebootOne(b, i))
		}
		slices.Sort(took)
		b.ReportMetric(milliseconds(took[len(took)/2]), "p50-ms")
		b.ReportMetric(milliseconds(took[len(took)*99/100]), "p99-ms")
		b.ReportMetric(milliseconds(took[len(took)-1]), "max-ms")
	})
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (f *fleet) rebootOne(b *testing.B, i int) time.Duration {
	b.Helper()
	nodes, name := f.admin.CoreV1().Nodes(), nodeName(i)
	only := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	list, err := nodes.List(b.Context(), only)
	if err != nil {
		b.Fatal(err)
	}
	only.ResourceVersion = list.ResourceVersion
	events, err := nodes.Watch(b.Context(), only)
	if err != nil {
		b.Fatal(err)
	}
	defer events.Stop()
	began := time.Now()
	status := fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q}}}`, nextBoot)
	if _, err := nodes.Patch(b.Context(), name, types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		b.Fatal(err)
	}
	return awaitArmed(b, events, began)
}

func awaitArmed(b *testing.B, events watch.Interface, began time.Time) time.Duration {
	b.Helper()
	g := gate.DefaultGate()
	for event := range events.ResultChan() {
		if node, ok := event.Object.(*corev1.Node); ok && g.Armed(node) {
			return time.Since(began)
		}
	}
	b.Fatal("the watch ended before the Node was armed")
	return 0
}

// BenchmarkTakeover kills the leader in the middle of a storm: the time until the
// other replica leads, and until it arms, and whether all are armed in the end.
func BenchmarkTakeover(b *testing.B) {
	nodes := *size / 5
	f := theLarge(b)
	once(b, func() {
		if err := f.put(b.Context(), nodes, boot); err != nil {
			b.Fatal(err)
		}
		leader, _ := run(b, f)
		if err := f.guards(b.Context()); err != nil {
			b.Fatal(err)
		}
		follower, _ := run(b, f)
		pause(b, 5*time.Second) // it has seen who leads
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		stormed := make(chan error, 1)
		go func() { stormed <- f.put(ctx, nodes, nextBoot) }()
		before := awaitCount(b, leader, nodes/5)
		leader.kill()
		killed := time.Now()
		awaitCount(b, follower, 1)
		took := time.Since(killed)
		if err := <-stormed; err != nil {
			b.Fatal(err)
		}
		for f.open(b, nodes) > 0 {
			pause(b, 100*time.Millisecond)
		}
		follower.kill()
		b.ReportMetric(float64(before), "armed-before")
		b.ReportMetric(took.Seconds(), "s-to-next-arm")
		b.ReportMetric(time.Since(killed).Seconds(), "s-to-all-armed")
	})
}

// awaitCount waits until a controller has armed so many Nodes.
func awaitCount(b *testing.B, c *controller, want int) int {
	b.Helper()
	for began := time.Now(); time.Since(began) < patience; pause(b, 5*time.Millisecond) {
		if armed, err := c.counter(b.Context(), "nodegate_guard_armed_total"); err == nil && armed >= want {
			return armed
		}
	}
	b.Fatalf("did not arm %d Nodes:\n%s", want, c.log.String())
	return 0
}

// open is how many of the first Nodes are not armed.
func (f *fleet) open(b *testing.B, nodes int) int {
	b.Helper()
	list, err := f.admin.CoreV1().Nodes().List(b.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		b.Fatal(err)
	}
	g, open := gate.DefaultGate(), 0
	for i := range list.Items {
		if list.Items[i].Name < nodeName(nodes) && !g.Armed(&list.Items[i]) {
			open++
		}
	}
	return open
}
