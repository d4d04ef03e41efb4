//go:build unix

package life

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nodegate/nodegate/test/world"
)

// inWorlds measures in both forms of the mutation, on an open node, what one run
// returns. Each has a new agent: one that is undone again and again takes its time.
func inWorlds(b *testing.B, run func(context.Context, *world.World, *world.Node) (time.Duration, error)) {
	ctrl.SetLogger(logr.Discard())
	programs := b.TempDir()
	if err := world.Build(b.Context(), programs); err != nil {
		b.Fatal(err)
	}
	for _, mutation := range []world.Mutation{world.Policy, world.Webhook} {
		b.Run(string(mutation), func(b *testing.B) {
			w, node := openWorld(b, programs, mutation)
			var took []time.Duration
			for b.Loop() {
				if err := renewAgent(b.Context(), node); err != nil {
					b.Fatal(err)
				}
				one, err := run(b.Context(), w, node)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, one)
			}
			slices.Sort(took)
			b.ReportMetric(milliseconds(took[len(took)/2]), "p50-ms")
			b.ReportMetric(milliseconds(took[len(took)*99/100]), "p99-ms")
			b.ReportMetric(0, "ns/op") // a run is more than what is measured of it
		})
	}
}

func openWorld(b *testing.B, programs string, mutation world.Mutation) (*world.World, *world.Node) {
	b.Helper()
	w, err := world.Start(b.Context(), world.Options{Dir: b.TempDir(), Programs: programs, Mutation: mutation})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := w.Stop(); err != nil {
			b.Error(err)
		}
		if b.Failed() {
			for name, text := range w.Logs() {
				b.Logf("end of %s:\n%s", name, text)
			}
		}
	})
	node, err := w.NewNode("node")
	if err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(node.Chain(), node.Boot(), bringUp(b.Context(), w, node)); err != nil {
		b.Fatal(err)
	}
	return w, node
}

// bringUp starts the agents and waits until they have opened the gate.
func bringUp(ctx context.Context, w *world.World, node *world.Node) error {
	from := node.History.Len()
	if err := errors.Join(node.Serve(), node.StartAgent(ctx)); err != nil {
		return err
	}
	_, _, err := node.History.Await(ctx, from, "open", w.Open)
	return err
}

// renewAgent replaces the agent on an open node.
func renewAgent(ctx context.Context, node *world.Node) error {
	node.StopAgent()
	if err := node.StartAgent(ctx); err != nil {
		return err
	}
	return node.AwaitAgent(ctx)
}

// BenchmarkStrip measures the time from the plugin's loss to the taint. The
// check's interval and its dwell, a second each, are in it.
func BenchmarkStrip(b *testing.B) {
	inWorlds(b, func(ctx context.Context, w *world.World, node *world.Node) (time.Duration, error) {
		from, began := node.History.Len(), time.Now()
		if err := node.Strip(); err != nil {
			return 0, err
		}
		i, armed, err := node.History.Await(ctx, from, "armed", w.Gate.Armed)
		if err != nil {
			return 0, err
		}
		if err := node.Unstrip(); err != nil {
			return 0, err
		}
		_, _, err = node.History.Await(ctx, i, "open", w.Open)
		return armed.At.Sub(began), err
	})
}

// writerPause is the time between the parts of a slow writer's list.
const writerPause = 30 * time.Millisecond

// BenchmarkRepair measures the time from the last write of another CNI, which
// brings its list in two parts, to the list with the plugin in it.
func BenchmarkRepair(b *testing.B) {
	inWorlds(b, func(ctx context.Context, _ *world.World, node *world.Node) (time.Duration, error) {
		began, err := node.Overwrite(writerPause)
		if err != nil {
			return 0, err
		}
		mended, err := node.AwaitChained(ctx)
		return mended.Sub(began), err
	})
}

// BenchmarkForeignTaint measures the time from the gate's taint being added
// by a third party, to a node that serves, to its removal by the agent.
func BenchmarkForeignTaint(b *testing.B) {
	inWorlds(b, func(ctx context.Context, w *world.World, node *world.Node) (time.Duration, error) {
		from := node.History.Len()
		if err := addTaint(ctx, w, node.Name); err != nil {
			return 0, err
		}
		i, armed, err := node.History.Await(ctx, from, "armed", w.Gate.Armed)
		if err != nil {
			return 0, err
		}
		_, open, err := node.History.Await(ctx, i, "open", w.Open)
		return open.At.Sub(armed.At), err
	})
}

func addTaint(ctx context.Context, w *world.World, name string) error {
	nodes := w.Admin.CoreV1().Nodes()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Spec.Taints = w.Gate.WithTaint(node.Spec.Taints)
		_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// BenchmarkSlowReboot reboots a node for longer than the control plane's
// grace, with admission alone: no guard runs. It measures the time from the
// kubelet's return to the taint, and fails if ever a state of the Node is seen
// with neither the control plane's taint nor the gate's, from the moment the
// control plane has noticed until the agent of the new boot has opened.
func BenchmarkSlowReboot(b *testing.B) {
	suspended := map[*world.World]bool{}
	inWorlds(b, func(ctx context.Context, w *world.World, node *world.Node) (time.Duration, error) {
		if !suspended[w] {
			suspended[w] = true
			if err := w.SuspendGuard(ctx); err != nil {
				return 0, err
			}
		}
		return rebootSlowly(ctx, w, node)
	})
}

func rebootSlowly(ctx context.Context, w *world.World, node *world.Node) (time.Duration, error) {
	from := node.History.Len()
	node.Crash()
	down, _, err := node.History.Await(ctx, from, "unreachable", func(n *corev1.Node) bool { return world.KubernetesTaints(n) == 2 })
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := node.Boot(); err != nil {
		return 0, err
	}
	i, armed, err := node.History.Await(ctx, down, "armed", w.Gate.Armed)
	if err != nil {
		return 0, err
	}
	i, _, err = node.History.Await(ctx, i, "reachable", func(n *corev1.Node) bool { return world.KubernetesTaints(n) == 0 })
	if err != nil {
		return 0, err
	}
	for _, seen := range node.History.Since(down)[:i+1-down] {
		if world.KubernetesTaints(seen.Node) == 0 && !w.Gate.Armed(seen.Node) {
			return 0, fmt.Errorf("node seen with neither taint: %v", seen.Node.Spec.Taints)
		}
	}
	return armed.At.Sub(began), bringUp(ctx, w, node)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
