//go:build unix

package profiles

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/world"
)

// dwell is what a test waits for instead of the ten seconds of a check.
const dwell = time.Second

// play starts a world with a profile, which enforces.
func play(t *testing.T, profile string) *world.World {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	text, err := os.ReadFile("../../manifests/profiles/" + profile)
	if err != nil {
		t.Fatal(err)
	}
	config := strings.Replace(string(text), "mode: observe", "mode: enforce", 1)
	programs := t.TempDir()
	if err := world.Build(t.Context(), programs); err != nil {
		t.Fatal(err)
	}
	w, err := world.Start(t.Context(), world.Options{Dir: t.TempDir(), Programs: programs, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for name, said := range w.Logs() {
				t.Logf("end of %s:\n%s", name, said)
			}
		}
	})
	return w
}

// newNode is a machine whose checks wait for no longer than a test can.
func newNode(t *testing.T, w *world.World, name string) *world.Node {
	t.Helper()
	node, err := w.NewNode(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Configure(shortDwell); err != nil {
		t.Fatal(err)
	}
	return node
}

func shortDwell(check *gate.Check) { check.Dwell = &metav1.Duration{Duration: dwell} }

// must ends the test at the first error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// await waits for a state of the Node, from the i-th on, and returns which it is.
func await(t *testing.T, node *world.Node, i int, what string, condition func(*corev1.Node) bool) int {
	t.Helper()
	at, _, err := node.History.Await(t.Context(), i, what, condition)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// turns counts how often the taint came or went in the states from the i-th on.
func turns(w *world.World, node *world.Node, i int) int {
	count := 0
	states := node.History.Since(i)
	for k := 1; k < len(states); k++ {
		if w.Gate.Armed(states[k].Node) != w.Gate.Armed(states[k-1].Node) {
			count++
		}
	}
	return count
}

// runDaemonSet has an agent's pod on every node, whatever its taints.
func runDaemonSet(t *testing.T, w *world.World, namespace, name string, labels map[string]string) {
	t.Helper()
	_, err := w.Admin.AppsV1().DaemonSets(namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec(corev1.Toleration{Operator: corev1.TolerationOpExists})},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

func podSpec(tolerations ...corev1.Toleration) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example/image"}}, Tolerations: tolerations}
}

// runPod makes a pod for the scheduler to place.
func runPod(t *testing.T, w *world.World, name string, tolerations ...corev1.Toleration) {
	t.Helper()
	_, err := w.Admin.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: podSpec(tolerations...),
	}, metav1.CreateOptions{})
	must(t, err)
}

// awaitPod waits until the scheduler has placed a pod, or has said that it cannot.
func awaitPod(t *testing.T, w *world.World, name string, scheduled corev1.ConditionStatus) {
	t.Helper()
	err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		pod, err := w.Admin.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				return c.Status == scheduled, nil
			}
		}
		return false, nil
	})
	if err != nil {
		t.Fatalf("waiting for pod %s to have PodScheduled=%s: %v", name, scheduled, err)
	}
}

// changeTaints is somebody else's write to a Node's taints.
func changeTaints(ctx context.Context, w *world.World, node *world.Node, change func([]corev1.Taint) []corev1.Taint) (*corev1.Node, error) {
	read, err := w.Admin.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return replaceTaints(ctx, w, read, change)
}

// replaceTaints writes all taints of a Node anew, if they are still those that were
// read, as Cilium's operator does.
func replaceTaints(ctx context.Context, w *world.World, read *corev1.Node, change func([]corev1.Taint) []corev1.Taint) (*corev1.Node, error) {
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/spec/taints", "value": read.Spec.Taints},
		{"op": "add", "path": "/spec/taints", "value": change(read.Spec.Taints)},
	})
	if err != nil {
		return nil, err
	}
	return w.Admin.CoreV1().Nodes().Patch(ctx, read.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
}
