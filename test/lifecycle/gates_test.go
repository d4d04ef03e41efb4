package lifecycle

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
)

// TestUpgrade_RenamesAGate: another gate takes the place of the one there is, while it
// enforces. No node that serves is closed, by the one or the other, and none is without
// a gate: the one goes when every agent writes for the other. What it has left is named,
// and pruned.
func TestUpgrade_RenamesAGate(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	mesh := gate.DefaultGate()
	mesh.Name, mesh.Taint.Key = "mesh", "example.com/mesh-not-ready"
	f.alsoWatch(mesh)
	f.done("install", "--config="+f.config(), "--mode=enforce")
	f.addNode("new") // which the guard would adopt by its age
	f.await("open, with a heartbeat", f.serves)
	before := f.guarded(gate.DefaultGate(), mesh)

	renamed := f.file(strings.NewReplacer("name: agent", "name: mesh", gate.DefaultTaintKey, mesh.Taint.Key).Replace(configuration))
	said := f.done("upgrade", "--config="+renamed)
	if !strings.Contains(said, "Gates come and go") {
		t.Error("it does not say that this takes two steps")
	}
	f.await("open, by the other gate", func(node *corev1.Node) bool {
		return !mesh.Armed(node) && !gate.DefaultGate().Armed(node) && gate.Judge(node, mesh, time.Now()) == gate.Fresh
	})
	if faults := before(); len(faults) > 0 {
		t.Errorf("at times no gate kept %v", faults)
	}
	f.expectNoFlaps()
	f.addNode("later")
	f.await("open, by the other gate", func(node *corev1.Node) bool {
		return !mesh.Armed(node) && gate.Judge(node, mesh, time.Now()) == gate.Fresh
	})
	f.done("upgrade")

	left := []byte(`{"spec": {"taints": [{"key": "` + gate.DefaultTaintKey + `", "effect": "NoSchedule"}]}}`)
	if _, err := f.admin.CoreV1().Nodes().Patch(t.Context(), "node-0", types.MergePatchType, left, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if out, code := f.nodegate("status"); code != 4 || !strings.Contains(out, "gate agent: these carry the taint "+gate.DefaultTaintKey+" of a gate that is not configured any more") {
		t.Errorf("exit code %d, it does not name what is left", code)
	}
	f.done("prune")
	if out, _ := f.nodegate("status"); strings.Contains(out, "not configured any more") {
		t.Error("something is left after prune")
	}
}

// kept reports whether a gate that has its policy would close the Node if its agent
// said so, or its heartbeat were of another boot.
func kept(node *corev1.Node, policies []admissionregistrationv1.MutatingAdmissionPolicy, gates []*gate.Gate) bool {
	return slices.ContainsFunc(gates, func(g *gate.Gate) bool {
		there := slices.ContainsFunc(policies, func(p admissionregistrationv1.MutatingAdmissionPolicy) bool {
			return p.Name == "update."+g.Name+"."+gate.Group
		})
		return there && gate.Judge(node, g, time.Now()) == gate.Fresh
	})
}

// guarded watches Nodes until it is asked for those that were seen without a gate that
// keeps them.
func (f *fleet) guarded(gates ...*gate.Gate) (faults func() []string) {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	found, done := map[string]bool{}, make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			// Policies are read first: one that goes meanwhile was there for the Nodes.
			policies, err := f.admin.AdmissionregistrationV1().MutatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			nodes, err := f.admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for i := range nodes.Items {
				if node := &nodes.Items[i]; !kept(node, policies.Items, gates) {
					found[node.Name] = true
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return func() []string {
		cancel()
		<-done
		var names []string
		for name := range found {
			names = append(names, name)
		}
		return names
	}
}

// TestInstall_ChangesTheMutation: while it enforces, one form takes the place of the
// other when it is seen to close new Nodes by itself, and not before.
func TestInstall_ChangesTheMutation(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	const policies, webhook = "MutatingAdmissionPolicyBinding /create.agent.nodegate.io", "MutatingWebhookConfiguration /mutate-node.nodegate.io"
	expect := func(want ...string) {
		t.Helper()
		all := f.everything()
		for _, name := range []string{policies, webhook} {
			if _, there := all[name]; there != slices.Contains(want, name) {
				t.Errorf("%s is there: %t", name, there)
			}
		}
	}
	f.done("install", "--config="+f.config(), "--mode=enforce")
	f.await("open, with a heartbeat", f.serves)
	// Nobody serves the webhook here.
	if out, code := f.nodegate("install", "--mutation=webhook", "--timeout=5s"); code != 2 || !strings.Contains(out, "has no caBundle") {
		t.Errorf("exit code %d, it does not say what it has not seen", code)
	}
	expect(policies, webhook)
	f.addNode("new")
	f.done("install", "--mutation=policy")
	expect(policies)
	if said := f.done("upgrade"); !strings.Contains(said, "armed by policies") {
		t.Error("an upgrade chooses another form")
	}
	expect(policies)
	f.await("open, with a heartbeat", f.serves)
	f.expectNoFlaps()
}
