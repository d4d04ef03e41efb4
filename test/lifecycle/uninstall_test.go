package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

// everything is all objects in the cluster but Events; Nodes with what they say.
func (f *fleet) everything() map[string]string {
	f.Helper()
	found := map[string]string{}
	served, err := discovery.NewDiscoveryClientForConfigOrDie(f.cluster.Admin).ServerPreferredResources()
	if err != nil {
		f.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(f.cluster.Admin)
	for _, list := range served {
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") || resource.Kind == "Event" {
				continue
			}
			group, version, _ := strings.Cut(list.GroupVersion, "/")
			if version == "" {
				group, version = "", group
			}
			objects, err := client.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: resource.Name}).List(f.Context(), metav1.ListOptions{})
			if err != nil {
				continue // what needs a name to be listed
			}
			for i := range objects.Items {
				object := &objects.Items[i]
				if object.GetNamespace() == metav1.NamespaceSystem {
					continue // the control plane's own
				}
				found[resource.Kind+" "+object.GetNamespace()+"/"+object.GetName()] = says(object)
			}
		}
	}
	return found
}

// says is what a Node says, without what counts its writes.
func says(object *unstructured.Unstructured) string {
	if object.GetKind() != "Node" {
		return ""
	}
	object.SetManagedFields(nil)
	object.SetResourceVersion("")
	text, err := object.MarshalJSON()
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// expectAsBefore: nothing is left, and no node's CNI list has the plugin.
func (f *fleet) expectAsBefore(before map[string]string, unchained bool) {
	f.Helper()
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		f.Errorf("-before +after:\n%s", diff)
	}
	for name, n := range f.nodes {
		text, err := os.ReadFile(filepath.Join(n.dir, gate.DefaultNetDir, "10-base.conflist"))
		if err != nil || strings.Contains(string(text), pluginType) == unchained {
			f.Errorf("node %s: %s (%v)", name, text, err)
		}
	}
}

// installed is a fleet on which nodegate enforces, and what was there before.
func installed(t *testing.T, nodes int) (*fleet, map[string]string) {
	t.Helper()
	f := newFleet(t, nodes)
	before := f.everything()
	f.done("install", "--config="+f.config(), "--mode=enforce")
	f.await("open, with a heartbeat", f.serves)
	return f, before
}

// TestUninstall: what is there is taken away, in whatever state it is, or it is said
// what remains.
func TestUninstall(t *testing.T) {
	t.Run("as it was installed", func(t *testing.T) {
		f, before := installed(t, 3)
		if out, code := f.nodegate("uninstall"); code != 1 || !strings.Contains(out, "nothing was removed") {
			t.Errorf("it did not ask: %d, %s", code, out)
		}
		f.done("uninstall", "--dry-run=server")
		f.done("uninstall", "--yes")
		f.expectAsBefore(before, true)
		f.expectNoFlaps()
		f.done("uninstall", "--yes")
	})
	t.Run("the namespace was deleted first", func(t *testing.T) {
		f, before := installed(t, 2)
		if err := f.admin.CoreV1().Namespaces().Delete(t.Context(), gate.Namespace, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
			_, err := f.admin.CoreV1().Namespaces().Get(ctx, gate.Namespace, metav1.GetOptions{})
			return err != nil, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		out, code := f.nodegate("uninstall", "--yes", "--config="+f.config())
		if code != 1 || !strings.Contains(out, "on node node-0 a plugin may be chained; run there: nodegate-agent unchain --plugin-type=mesh-cni --dir=/etc/cni/net.d") {
			t.Errorf("exit code %d, it does not say what remains", code)
		}
		f.expectAsBefore(before, false)
		if out := f.done("uninstall", "--yes"); !strings.Contains(out, "There is no configuration in the cluster") {
			t.Error("it does not say what it does not know")
		}
	})
	t.Run("the API server goes away and comes back", func(t *testing.T) {
		f, before := installed(t, 2)
		wire, err := cluster.NewWire(f.cluster.Admin)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(wire.Cut)
		direct := f.kubeconfig
		f.kubeconfig = filepath.Join(t.TempDir(), "wire")
		if err := cluster.WriteKubeconfig(wire.Config(f.cluster.Admin), f.kubeconfig); err != nil {
			t.Fatal(err)
		}
		mended := make(chan error, 1)
		go func() {
			err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
				_, err := f.admin.AppsV1().Deployments(gate.Namespace).Get(ctx, gate.ControllerAccount, metav1.GetOptions{})
				return apierrors.IsNotFound(err), nil
			})
			wire.Cut()
			<-time.After(3 * time.Second) // it is away for a while
			mended <- errors.Join(err, wire.Mend())
		}()
		f.done("uninstall", "--yes")
		if err := <-mended; err != nil {
			t.Error(err)
		}
		f.kubeconfig = direct
		f.expectAsBefore(before, true)
	})
	t.Run("a node is dead", func(t *testing.T) {
		f, before := installed(t, 2)
		f.mu.Lock()
		f.dead["node-1"] = true // its kubelet does nothing any more
		f.mu.Unlock()
		out, code := f.nodegate("uninstall", "--yes", "--timeout=15s")
		if code != 1 || !strings.Contains(out, "on node node-1 a plugin may be chained") || strings.Contains(out, "on node node-0 a plugin") ||
			!strings.Contains(out, "Remains: Namespace nodegate-system") {
			t.Errorf("exit code %d, it does not say what remains", code)
		}
		f.mu.Lock()
		delete(f.dead, "node-1")
		f.mu.Unlock()
		f.done("uninstall", "--yes", "--keep-conflist")
		if diff := cmp.Diff(before, f.everything()); diff != "" {
			t.Errorf("-before +after:\n%s", diff)
		}
	})
}
