package cli

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// mark gives a Node taints and annotations that say nothing.
func (e *environment) mark(t *testing.T, name string, taints []string, annotations ...string) {
	t.Helper()
	node, err := e.admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Annotations = map[string]string{}
	for _, key := range annotations {
		node.Annotations[key] = "x"
	}
	for _, key := range taints {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	if _, err := e.admin.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// carried is what a Node carries: keys of taints and annotations.
func (e *environment) carried(t *testing.T, name string) string {
	t.Helper()
	node, err := e.admin.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := keysOf(node)
	for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
		if strings.HasPrefix(key, gate.HeartbeatPrefix) || strings.HasPrefix(key, gate.BypassPrefix) {
			all = append(all, key)
		}
	}
	return strings.Join(all, " ")
}

// TestPrune: what gates have left goes, in admission and on Nodes, though the policies
// of one are still in force that put taints back. What a gate governs stays, and what
// is somebody else's.
func TestPrune(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	e.expect(t, codeFailed, "is nodegate installed in this cluster?", "prune")
	all := map[string]string{corev1.LabelOSStable: "linux"}
	e.node(t, "live", map[string]string{corev1.LabelOSStable: "linux", "pool": "blue"})
	e.node(t, "left", all)
	e.node(t, "foreign", all)
	const one = head + "gates: [{name: blue, taint: {key: example.com/blue}, nodeSelector: {matchLabels: {pool: blue}}}]\n"
	e.install(t, manifests.Options{Config: twoGates})
	e.install(t, manifests.Options{Config: one})
	e.awaitBorn(t, true, all) // as mesh and disk have it, which are not configured any more
	e.mark(t, "live", []string{"example.com/blue"}, "heartbeat.nodegate.io/blue", "bypass.example.com/blue")
	e.mark(t, "left", []string{"example.com/mesh", "example.com/disk", "example.com/noted", "example.com/blue", "example.com/foreign", gate.DefaultTaintKey},
		"heartbeat.nodegate.io/mesh", "heartbeat.nodegate.io/blue")
	e.mark(t, "foreign", []string{"example.com/foreign", "example.com/other"}, "example.com/heartbeat")
	noted := []byte(`{"metadata": {"annotations": {"nodegate.io/retired": "was=example.com/noted"}}}`)
	if _, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Patch(t.Context(), gate.ConfigMapName, types.MergePatchType, noted, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.expect(t, int(codeArmed), "gate was: these carry the taint example.com/noted of a gate that is not configured any more", "status")

	const of = "taint example.com/mesh:NoSchedule, taint example.com/disk:NoSchedule, taint example.com/noted:NoSchedule, taint example.com/blue:NoSchedule, " +
		"taint nodegate.io/agent-not-ready:NoSchedule, heartbeat of gate blue, heartbeat of gate mesh removed"
	before := e.carried(t, "left")
	e.expect(t, codeDone, "Node left: "+of+" (dry run)", "prune", "--dry-run=client")
	e.expect(t, codeDone, "Node left: "+of+" (server dry run)", "prune", "--dry-run=server")
	e.expect(t, codeDone, "MutatingAdmissionPolicy update.mesh.nodegate.io removed (server dry run)", "prune", "--dry-run=server")
	if got := e.carried(t, "left"); got != before {
		t.Errorf("a dry run has left %q of %q", got, before)
	}
	e.expect(t, codeDone, "Node left: "+of+"\n", "prune")
	for name, want := range map[string]string{
		"live": "example.com/blue heartbeat.nodegate.io/blue", "left": "example.com/foreign", "foreign": "example.com/foreign example.com/other",
	} {
		// The policies of mesh and disk have added their taints to whatever was written.
		got := e.carried(t, name)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("node %s, -want +got:\n%s", name, diff)
		}
	}
	e.awaitBorn(t, false, all)
	policies, err := e.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(policies.Items) != 2 {
		t.Errorf("%d policies (%v), want the two of gate blue", len(policies.Items), err)
	}
	e.expect(t, codeDone, "Nothing is left", "prune")

	// What nothing in the cluster tells of is told by the file that it was in; once
	// pruned, a taint that is noted no more is somebody else's.
	e.mark(t, "left", []string{"example.com/noted", "example.com/mesh"})
	e.expect(t, codeDone, "Nothing is left", "prune")
	e.expect(t, codeDone, "Node left: taint example.com/mesh:NoSchedule removed\n", "prune", "--old-config="+writeFile(t, twoGates))
	if got := e.carried(t, "left"); got != "example.com/foreign example.com/noted" {
		t.Errorf("node left: %q", got)
	}
}

// TestPrune_AtScale: a Node costs a reading and a write, and they are many at a time.
func TestPrune_AtScale(t *testing.T) {
	t.Parallel()
	const nodes = 1200 // more than two pages
	e := newEnvironment(t)
	e.installConfig(t)
	e.setConfig(t, oneGate)
	for i := range nodes {
		_, err := e.admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: gate.DefaultTaintKey, Effect: corev1.TaintEffectNoSchedule}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("node %d: %v", i, err)
		}
	}
	began := time.Now()
	out, errOut, code := e.run(t, "prune")
	t.Logf("%d Nodes in %s", nodes, time.Since(began))
	if count := strings.Count(out, "removed\n"); code != codeDone || count != nodes {
		t.Errorf("exit code %d, %d Nodes are cleaned of %d\n%s", code, count, nodes, errOut)
	}
	e.expect(t, codeDone, "Nothing is left", "prune")
}
