package webhook_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/webhookserver"
)

// environment is a real API server that calls the webhook over TLS.
type environment struct {
	cluster *cluster.Cluster
	server  *webhookserver.Server
	admin   client.Client
	mode    atomic.Value
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	c := cluster.ForTest(t)
	e := &environment{cluster: c, admin: newClient(t, c.Admin)}
	ctrl.SetLogger(logr.Discard())
	e.mode.Store(gate.ModeEnforce)
	var err error
	e.server, err = webhookserver.Start(t.Context(), e.configuration, c.Admin, nil)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *environment) configuration() *gate.Configuration {
	cfg := gate.Default()
	cfg.Mode = e.mode.Load().(gate.Mode)
	return cfg
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// warnings collects what the API server warns of.
type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

func (e *environment) create(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}}}
	if err := e.admin.Create(t.Context(), node); err != nil {
		t.Fatalf("creating node: %v", err)
	}
	return node
}

func patch(t *testing.T, c client.Client, name, merge string, options ...client.PatchOption) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(merge)), options...); err != nil {
		t.Fatalf("patching node: %v", err)
	}
	return node
}

func expectTaints(t *testing.T, node *corev1.Node, want ...string) {
	t.Helper()
	var got []string
	for _, taint := range node.Spec.Taints {
		if !strings.HasPrefix(taint.Key, "node.kubernetes.io/") {
			got = append(got, taint.ToString())
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

const gateTaint = "nodegate.io/agent-not-ready:NoSchedule"

func TestWebhook_OnAnAPIServer(t *testing.T) {
	e := newEnvironment(t)
	t.Run("a Node is born armed", func(t *testing.T) {
		expectTaints(t, e.create(t, "born"), gateTaint)
	})
	t.Run("a kubelet's Node is born armed, and its update passes", e.kubelet)
	t.Run("a premature removal is put back, and the caller is told", e.removal)
	t.Run("a dry run is put back too, and stores nothing", e.dryRun)
	t.Run("fields that the webhook does not know survive", e.unknownFields)
	t.Run("the agent opens in one write with its heartbeat", e.opening)
	t.Run("observe touches nothing", e.observe)
	t.Run("concurrent removals never win", e.concurrent)
	t.Run("a registration that is too wide stops nothing", e.tooWide)
	t.Run("Nodes are written when no webhook answers", e.nobodyServes)
}

func (e *environment) kubelet(t *testing.T) {
	config, err := e.cluster.Kubelet("kubelet")
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, config)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "kubelet", Labels: map[string]string{"kubernetes.io/os": "linux"}}}
	if err := c.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	expectTaints(t, node, gateTaint)
	exempt := patch(t, e.admin, "kubelet", `{"metadata":{"labels":{"nodegate.io/exempt":"true"}},"spec":{"taints":null}}`)
	expectTaints(t, exempt)
	patch(t, e.admin, "kubelet", `{"metadata":{"annotations":{"heartbeat.nodegate.io/agent":"v=1"}}}`)
	// Governed, open, adopted, Malformed: armed in anybody's write, but in a
	// kubelet's own that would make NodeRestriction refuse it.
	e.mode.Store(gate.ModeObserve)
	patch(t, e.admin, "kubelet", `{"metadata":{"labels":{"nodegate.io/exempt":null}}}`)
	e.mode.Store(gate.ModeEnforce)
	expectTaints(t, patch(t, c, "kubelet", `{"metadata":{"annotations":{"example.com/note":"x"}}}`))
	expectTaints(t, patch(t, e.admin, "kubelet", `{"metadata":{"annotations":{"example.com/note":"y"}}}`), gateTaint)
}

func (e *environment) removal(t *testing.T) {
	e.create(t, "removal")
	heard := &warnings{}
	config := rest.CopyConfig(e.cluster.Admin)
	config.WarningHandlerWithContext = heard
	c := newClient(t, config)
	node := patch(t, c, "removal", `{"metadata":{"labels":{"pool":"blue"}},"spec":{"taints":[{"key":"foreign","effect":"NoExecute"}]}}`)
	expectTaints(t, node, "foreign:NoExecute", gateTaint)
	if node.Labels["pool"] != "blue" {
		t.Error("the rest of the write was lost")
	}
	want := "nodegate: taint nodegate.io/agent-not-ready was put back: there is no heartbeat of the node's agent (Absent); see annotation heartbeat.nodegate.io/agent of the node"
	if !slices.Contains(heard.text, want) {
		t.Errorf("warned of %q, want %q", heard.text, want)
	}
}

func (e *environment) dryRun(t *testing.T) {
	before := e.create(t, "dry")
	expectTaints(t, patch(t, e.admin, "dry", `{"spec":{"taints":[{"key":"foreign","effect":"NoExecute"}]}}`, client.DryRunAll),
		"foreign:NoExecute", gateTaint)
	after := &corev1.Node{}
	if err := e.admin.Get(t.Context(), client.ObjectKeyFromObject(before), after); err != nil {
		t.Fatal(err)
	}
	if after.ResourceVersion != before.ResourceVersion {
		t.Error("a dry run was stored")
	}
}

// unknownFields: the handler decodes a handful of fields, so every other one is
// unknown to it. All that a Node can have must be the same after a mutation.
func (e *environment) unknownFields(t *testing.T) {
	e.create(t, "fields")
	patch(t, e.admin, "fields", `{"metadata":{"annotations":{"big":"9007199254740993"},"finalizers":["example.com/f"]},"spec":{
		"podCIDR":"10.0.0.0/24","podCIDRs":["10.0.0.0/24"],"providerID":"x://y","unschedulable":true,
		"taints":[{"key":"foreign","value":"v","effect":"NoExecute","timeAdded":"2026-01-02T03:04:05Z"}]}}`)
	get := func() map[string]any {
		node := &unstructured.Unstructured{}
		node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		if err := e.admin.Get(t.Context(), client.ObjectKey{Name: "fields"}, node); err != nil {
			t.Fatal(err)
		}
		unstructured.RemoveNestedField(node.Object, "metadata", "managedFields")
		unstructured.RemoveNestedField(node.Object, "metadata", "resourceVersion")
		return node.Object
	}
	before := get()
	taints := `[{"key":"node.kubernetes.io/unschedulable","effect":"NoSchedule"},{"key":"foreign","value":"v","effect":"NoExecute","timeAdded":"2026-01-02T03:04:05Z"}]`
	patch(t, e.admin, "fields", `{"spec":{"taints":`+taints+`}}`)
	after := get()
	want, _, _ := unstructured.NestedSlice(before, "spec", "taints")
	got, _, _ := unstructured.NestedSlice(after, "spec", "taints")
	if foreign := func(list []any) any { return find(list, "foreign") }; !cmp.Equal(foreign(want), foreign(got)) {
		t.Errorf("the foreign taint changed from %v to %v", foreign(want), foreign(got))
	}
	if find(got, gate.DefaultTaintKey) == nil {
		t.Errorf("taints %v, want the gate's put back", got)
	}
	unstructured.RemoveNestedField(before, "spec", "taints")
	unstructured.RemoveNestedField(after, "spec", "taints")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the mutation changed other fields:\n%s", diff)
	}
	patch(t, e.admin, "fields", `{"metadata":{"finalizers":null}}`)
}

func find(taints []any, key string) any {
	for _, taint := range taints {
		if taint.(map[string]any)["key"] == key {
			return taint
		}
	}
	return nil
}

func (e *environment) opening(t *testing.T) {
	node := e.create(t, "opening")
	boot := "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	node.Status.NodeInfo.BootID = boot
	if err := e.admin.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	config, err := e.cluster.PodToken(t.Context(), gate.Namespace, gate.AgentAccount, "opening")
	if err != nil {
		t.Fatal(err)
	}
	e.allowNodes(t)
	heartbeat := gate.Heartbeat{Ready: true, Time: time.Now().Truncate(time.Second), TTL: time.Minute, BootID: boot, NodeUID: node.UID}
	value, err := heartbeat.Format()
	if err != nil {
		t.Fatal(err)
	}
	agent := newClient(t, config)
	// The authorizer learns of a new binding by a watch.
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		return agent.Get(ctx, client.ObjectKeyFromObject(node), &corev1.Node{}) == nil, nil
	})
	if err != nil {
		t.Fatalf("waiting for the agent's rights: %v", err)
	}
	open := fmt.Sprintf(`{"metadata":{"annotations":{"heartbeat.nodegate.io/agent":%q}},"spec":{"taints":null}}`, value)
	expectTaints(t, patch(t, agent, "opening", open))
	heartbeat.Ready = false
	if value, err = heartbeat.Format(); err != nil {
		t.Fatal(err)
	}
	closed := fmt.Sprintf(`{"metadata":{"annotations":{"heartbeat.nodegate.io/agent":%q}}}`, value)
	expectTaints(t, patch(t, agent, "opening", closed), gateTaint)
}

func (e *environment) observe(t *testing.T) {
	e.create(t, "observe")
	e.mode.Store(gate.ModeObserve)
	defer e.mode.Store(gate.ModeEnforce)
	expectTaints(t, patch(t, e.admin, "observe", `{"spec":{"taints":null}}`))
}

func (e *environment) concurrent(t *testing.T) {
	e.create(t, "concurrent")
	const writers, rounds = 4, 50
	var wg sync.WaitGroup
	for writer := range writers {
		wg.Go(func() {
			for round := range rounds {
				node := patch(t, e.admin, "concurrent", fmt.Sprintf(
					`{"metadata":{"labels":{"writer-%d":"%d"}},"spec":{"taints":[{"key":"foreign-%d","effect":"NoExecute"}]}}`, writer, round, writer))
				expectTaints(t, node, fmt.Sprintf("foreign-%d:NoExecute", writer), gateTaint)
			}
		})
	}
	wg.Wait()
}

func (e *environment) tooWide(t *testing.T) {
	registry := prometheus.NewRegistry()
	if err := e.server.Metrics.Register(registry); err != nil {
		t.Fatal(err)
	}
	wide := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "wide"}, Webhooks: e.server.Registration.DeepCopy().Webhooks,
	}
	wide.Webhooks[0].MatchConditions = nil
	wide.Webhooks[0].Rules[0].Rule = admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*"}}
	if err := e.admin.Create(t.Context(), wide); err != nil {
		t.Fatal(err)
	}
	err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "any-", Namespace: metav1.NamespaceDefault}}
		if err := e.admin.Create(ctx, object, client.DryRunAll); err != nil {
			t.Errorf("a write was refused: %v", err)
		}
		families, err := registry.Gather()
		for _, family := range families {
			if family.GetName() == "nodegate_webhook_refused_total" && family.GetMetric()[0].GetCounter().GetValue() > 0 {
				return true, err
			}
		}
		return t.Failed(), err
	})
	if err != nil {
		t.Fatalf("waiting for the webhook to be asked: %v", err)
	}
	if err := e.admin.Delete(t.Context(), wide); err != nil {
		t.Fatal(err)
	}
}

func (e *environment) nobodyServes(t *testing.T) {
	if err := e.server.StopServing(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	expectTaints(t, e.create(t, "unserved"))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the write took %s", took)
	}
}

// allowNodes lets the agent's account write Nodes.
func (e *environment) allowNodes(t *testing.T) {
	t.Helper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "patch"}}},
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "agent"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: gate.Namespace, Name: gate.AgentAccount}},
	}
	for _, object := range []client.Object{role, binding} {
		if err := e.admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}
