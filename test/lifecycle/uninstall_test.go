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
	corev1 "k8s.io/api/core/v1"
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

// unmarked is what a Node says that is open, without the heartbeat.
func (f *fleet) unmarked(name string) string {
	f.Helper()
	nodes := dynamic.NewForConfigOrDie(f.cluster.Admin).Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	node, err := nodes.Get(f.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	unstructured.RemoveNestedField(node.Object, "metadata", "annotations", gate.DefaultGate().HeartbeatAnnotation())
	return says(node)
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
func installed(t *testing.T, nodes int, options ...cluster.Option) (*fleet, map[string]string) {
	t.Helper()
	f := newFleet(t, nodes, options...)
	before := f.everything()
	f.done("install", "--config="+f.config(), "--mode=enforce")
	f.await("open, with a heartbeat", f.serves)
	return f, before
}

// mayBeChained is what is said of a node on which the plugin was not seen to be taken
// out.
func mayBeChained(node string) string {
	return "on node " + node + " a plugin may be chained; run there: nodegate-agent unchain --plugin-type=mesh-cni --dir=/etc/cni/net.d"
}

// expectSays runs a command that must not do all of its work, and say why.
func (f *fleet) expectSays(said []string, args ...string) (out string) {
	f.Helper()
	out, code := f.nodegate(args...)
	for _, want := range said {
		if code != 1 || !strings.Contains(out, want) {
			f.Errorf("exit code %d, want 1 and %q", code, want)
		}
	}
	return out
}

// gone awaits that something is not there.
func (f *fleet) gone(what string, get func(context.Context) error) {
	f.Helper()
	err := cluster.Await(f.Context(), func(ctx context.Context) (bool, error) { return apierrors.IsNotFound(get(ctx)), nil })
	if err != nil {
		f.Fatalf("waiting for %s to be gone: %v", what, err)
	}
}

func (f *fleet) getNamespace(ctx context.Context) error {
	_, err := f.admin.CoreV1().Namespaces().Get(ctx, gate.Namespace, metav1.GetOptions{})
	return err
}

func (f *fleet) getController(ctx context.Context) error {
	_, err := f.admin.AppsV1().Deployments(gate.Namespace).Get(ctx, gate.ControllerAccount, metav1.GetOptions{})
	return err
}

func (f *fleet) getAgents(ctx context.Context) error {
	_, err := f.admin.AppsV1().DaemonSets(gate.Namespace).Get(ctx, gate.AgentAccount, metav1.GetOptions{})
	return err
}

func (f *fleet) deleteNamespace() {
	f.Helper()
	if err := f.admin.CoreV1().Namespaces().Delete(f.Context(), gate.Namespace, metav1.DeleteOptions{}); err != nil {
		f.Fatal(err)
	}
	f.gone("the namespace", f.getNamespace)
}

// TestUninstall_NamespaceDeletedFirst: the rest goes, and the nodes are named whose
// agents went before they could take the plugin out.
func TestUninstall_NamespaceDeletedFirst(t *testing.T) {
	t.Parallel()
	f, before := installed(t, 2)
	f.deleteNamespace()
	f.expectSays([]string{mayBeChained("node-0"), mayBeChained("node-1")}, "uninstall", "--yes", "--config="+f.config())
	f.expectAsBefore(before, false)
	if out := f.done("uninstall", "--yes"); !strings.Contains(out, "There is no configuration in the cluster") {
		t.Error("it does not say what it does not know")
	}
}

// TestUninstall_AgentsGone: the same where somebody deleted the agents alone. One of
// the nodes has gone, too, and is not named.
func TestUninstall_AgentsGone(t *testing.T) {
	t.Parallel()
	f, before := installed(t, 3)
	if err := f.admin.AppsV1().DaemonSets(gate.Namespace).Delete(t.Context(), gate.AgentAccount, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationForeground),
	}); err != nil {
		t.Fatal(err)
	}
	f.gone("the agents", f.getAgents)
	if err := f.admin.CoreV1().Nodes().Delete(t.Context(), "node-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	delete(before, "Node /node-2")
	out := f.expectSays([]string{mayBeChained("node-0"), mayBeChained("node-1")}, "uninstall", "--yes")
	if strings.Contains(out, "node-2") {
		t.Error("it names a node that is not there")
	}
	f.expectAsBefore(before, false)
}

// TestUninstall_PoliciesLeft: somebody deleted everything but what admits, which keeps
// a node closed whose agent is no more, whoever removes the taint.
func TestUninstall_PoliciesLeft(t *testing.T) {
	t.Parallel()
	f, before := installed(t, 2)
	f.deleteNamespace()
	f.kubectl("delete", "clusterroles,clusterrolebindings,flowschemas", "-l", "app.kubernetes.io/part-of=nodegate")
	f.kubectl("delete", "roles,rolebindings", "-A", "-l", "app.kubernetes.io/part-of=nodegate")
	f.kubectl("annotate", "node", "node-0", gate.DefaultGate().HeartbeatAnnotation()+"-")
	f.kubectl("taint", "node", "node-0", gate.DefaultTaintKey+"-")
	node, err := f.admin.CoreV1().Nodes().Get(t.Context(), "node-0", metav1.GetOptions{})
	if err != nil || !gate.DefaultGate().Armed(node) {
		t.Fatalf("the policies do not keep it closed: %v", err)
	}
	if out := f.done("uninstall", "--yes"); !strings.Contains(out, "Whether plugins are chained is not known without the configuration; name it by --config") {
		t.Error("it does not say what it does not know")
	}
	f.expectAsBefore(before, false)
}

// TestUninstall_APIServerRestarts in the middle of it: that is waited for.
func TestUninstall_APIServerRestarts(t *testing.T) {
	t.Parallel()
	f, before := installed(t, 2, cluster.WithFlag("request-timeout", "10s")) // which is how long it waits for watches, when it ends
	restarted := make(chan error, 1)
	go func() {
		err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) { return apierrors.IsNotFound(f.getController(ctx)), nil })
		restarted <- errors.Join(err, f.cluster.Restart(3*time.Second))
	}()
	out := f.done("uninstall", "--yes")
	if err := <-restarted; err != nil {
		t.Error(err)
	}
	if !strings.Contains(out, "nothing of it is left") {
		t.Error("it does not say so")
	}
	f.expectAsBefore(before, true)
}

// TestUninstall_DeadNode: what is left is named, soon, and stays known however often
// the command is run; when the node is back, the rest goes by itself.
func TestUninstall_DeadNode(t *testing.T) {
	t.Parallel()
	f, before := installed(t, 2)
	f.setDead("node-1", true)
	for range 2 {
		out := f.expectSays([]string{"Nodes whose kubelets do not answer are not waited for: node-1", mayBeChained("node-1"),
			"which the kubelet of node node-1 does not end", "Remains: Namespace nodegate-system, which is being deleted"}, "uninstall", "--yes")
		if strings.Contains(out, mayBeChained("node-0")) || strings.Contains(out, "It was not seen") {
			t.Error("it does not know what was done on node-0, or waits for node-1")
		}
	}
	f.setDead("node-1", false)
	f.gone("the namespace", f.getNamespace)
	f.done("uninstall", "--yes")
	if diff := cmp.Diff(before, f.everything()); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// TestUninstall_Interrupted: wherever that was, it is finished by the next run, which
// knows what the first one did.
func TestUninstall_Interrupted(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	before := f.everything()
	agentsGone := func(ctx context.Context) (bool, error) { return apierrors.IsNotFound(f.getAgents(ctx)), nil }
	for _, at := range []struct {
		what string
		seen func(context.Context) (bool, error)
	}{
		{"plugins are taken out", func(ctx context.Context) (bool, error) {
			set, err := f.admin.AppsV1().DaemonSets(gate.Namespace).Get(ctx, gate.AgentAccount, metav1.GetOptions{})
			return err == nil && len(set.Spec.Template.Spec.InitContainers) > 0, err
		}},
		{"the agents are gone", agentsGone},
		{"the namespace is ending", func(ctx context.Context) (bool, error) {
			found, err := f.admin.CoreV1().Namespaces().Get(ctx, gate.Namespace, metav1.GetOptions{})
			return apierrors.IsNotFound(err) || err == nil && found.DeletionTimestamp != nil, nil
		}},
	} {
		f.chain()
		f.done("install", "--config="+f.config(), "--mode=enforce")
		f.await("open, with a heartbeat", f.serves)
		f.interrupt(at.what, at.seen, "uninstall", "--yes")
		if out := f.done("uninstall", "--yes"); strings.Contains(out, "may be chained") {
			t.Errorf("%s: it does not know what was done", at.what)
		}
		f.expectAsBefore(before, true)
	}
	f.expectNoFlaps()
	f.regretted(before, agentsGone)
}

// regretted: what an interrupted uninstallation has noted is void when nodegate is
// installed again, and chained again.
func (f *fleet) regretted(before map[string]string, agentsGone func(context.Context) (bool, error)) {
	f.Helper()
	f.chain()
	f.done("install", "--config="+f.config(), "--mode=enforce")
	f.await("open, with a heartbeat", f.serves)
	f.interrupt("the agents are gone", agentsGone, "uninstall", "--yes")
	f.chain()
	f.done("install", "--image-tag=v2", "--mode=enforce")
	f.await("open, with a heartbeat", f.serves)
	if err := f.admin.AppsV1().DaemonSets(gate.Namespace).Delete(f.Context(), gate.AgentAccount, metav1.DeleteOptions{}); err != nil {
		f.Fatal(err)
	}
	f.gone("the agents", f.getAgents)
	f.expectSays([]string{mayBeChained("node-0"), mayBeChained("node-1")}, "uninstall", "--yes")
	f.expectAsBefore(before, false)
}
