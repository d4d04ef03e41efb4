//go:build unix

package profiles

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/world"
)

var ciliumLabels = map[string]string{"k8s-app": "cilium"}

func TestCilium(t *testing.T) {
	w := play(t, "cilium.yaml")
	runDaemonSet(t, w, metav1.NamespaceSystem, "cilium", ciliumLabels)
	node := newNode(t, w, "node-a")
	operator := runCiliumOperator(t, w, node)
	must(t, node.Boot(), node.StartAgent(t.Context()))

	t.Log("Kubernetes calls Cilium's pod Ready, and Cilium does not answer yet")
	operator.awaitRemovals(t, 20)
	if i := slices.IndexFunc(node.History.Since(0), func(s world.Seen) bool { return !w.Gate.Armed(s.Node) }); i >= 0 {
		t.Fatalf("state %d of the Node is open", i)
	}

	t.Log("Cilium answers")
	from := node.History.Len()
	must(t, node.Serve())
	from = await(t, node, from, "open", w.Open)

	t.Log("Cilium hangs, and its pod is still Ready")
	node.StopServing("http")
	from = await(t, node, from, "armed", w.Gate.Armed)
	operator.awaitRemovals(t, 20)
	if n := turns(w, node, from); n != 0 {
		t.Errorf("the taint came or went %d times while Cilium did not answer", n)
	}
	from = node.History.Len()
	must(t, node.Serve())
	from = await(t, node, from, "open", w.Open)

	t.Log("the pod is not Ready, for which the operator puts the taint back itself")
	node.SetReadiness(func(*corev1.Pod) bool { return false })
	from = await(t, node, from, "armed, and not ready by its heartbeat", func(n *corev1.Node) bool {
		return w.Gate.Armed(n) && gate.Judge(n, w.Gate, time.Now()) == gate.NotReady
	})
	node.SetReadiness(func(*corev1.Pod) bool { return true })
	await(t, node, from, "open", w.Open)

	t.Log("a reboot, after which Kubernetes still calls the old pod Ready")
	from = node.History.Len()
	node.Crash()
	must(t, node.Boot())
	from = await(t, node, from, "armed", w.Gate.Armed)
	operator.awaitRemovals(t, 20)
	if n := turns(w, node, from); n != 0 {
		t.Errorf("the taint came or went %d times before Cilium answered in this boot", n)
	}
	must(t, node.Serve(), node.StartAgent(t.Context()))
	await(t, node, from, "open", w.Open)
}

// ciliumOperator does to one node what Cilium's operator does: it removes the taint
// where Cilium's pod is Ready and adds it where one is bound that is not. It looks
// more often than any informer would call it.
type ciliumOperator struct {
	world    *world.World
	node     string
	removals atomic.Int64
}

func runCiliumOperator(t *testing.T, w *world.World, node *world.Node) *ciliumOperator {
	t.Helper()
	o := &ciliumOperator{world: w, node: node.Name}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			o.mark(ctx)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return o
}

// awaitRemovals waits until the operator has removed the taint so many times more.
func (o *ciliumOperator) awaitRemovals(t *testing.T, more int64) {
	t.Helper()
	want := o.removals.Load() + more
	err := cluster.Await(t.Context(), func(context.Context) (bool, error) { return o.removals.Load() >= want, nil })
	if err != nil {
		t.Fatalf("waiting for the operator to remove the taint: %v", err)
	}
}

// mark looks once. What fails is tried again at the next look.
func (o *ciliumOperator) mark(ctx context.Context) {
	node, err := o.world.Admin.CoreV1().Nodes().Get(ctx, o.node, metav1.GetOptions{})
	if err != nil {
		return
	}
	pods, err := o.world.Admin.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(ciliumLabels).String(),
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", o.node).String(),
	})
	if err != nil || len(pods.Items) == 0 {
		return
	}
	armed := o.world.Gate.Armed(node)
	switch ready := placement.Ready(&pods.Items[0]); {
	case ready && armed:
		if _, err := replaceTaints(ctx, o.world, node, o.world.Gate.WithoutTaint); err == nil {
			o.removals.Add(1)
		}
	case !ready && !armed:
		_, _ = replaceTaints(ctx, o.world, node, o.world.Gate.WithTaint)
	}
}
