package behaviour

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/webhookserver"
)

// environment is a real API server with the default gate enforced, in one of the
// two forms of the mutation.
type environment struct {
	cluster *cluster.Cluster
	cfg     *gate.Configuration
	gate    *gate.Gate
	admin   kubernetes.Interface
	// webhook is nil where policies mutate.
	webhook *webhookserver.Server
	// configuration is the webhook's and the guard's.
	configuration func() *gate.Configuration
}

// inEachForm runs a test with the policies and with the webhook.
func inEachForm(t *testing.T, test func(*testing.T, *environment)) {
	t.Helper()
	for name, install := range map[string]func(*testing.T, *environment){
		"policy": installPolicies, "webhook": installWebhook,
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnvironment(t)
			install(t, e)
			test(t, e)
		})
	}
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	ctrl.SetLogger(logr.Discard()) // the libraries'
	c := cluster.ForTest(t)
	e := &environment{cluster: c, cfg: gate.Default()}
	e.gate = &e.cfg.Gates[0]
	e.configuration = func() *gate.Configuration { return e.cfg }
	e.admin = e.client(t, "admin")
	return e
}

func installPolicies(t *testing.T, e *environment) {
	t.Helper()
	if err := e.cluster.InstallPolicies(t.Context(), e.cfg); err != nil {
		t.Fatal(err)
	}
}

func installWebhook(t *testing.T, e *environment) {
	t.Helper()
	policies, err := manifests.ValidationPolicies(e.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.cluster.Apply(t.Context(), policies); err != nil {
		t.Fatal(err)
	}
	configuration := func() *gate.Configuration { return e.configuration() }
	if e.webhook, err = webhookserver.Start(t.Context(), configuration, e.cluster.Admin, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.webhook.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := e.cluster.AwaitPolicies(t.Context(), e.cfg); err != nil {
		t.Fatal(err)
	}
}

// client is an administrator's who writes under a name, which managedFields show.
func (e *environment) client(t *testing.T, name string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(e.cluster.Admin)
	config.UserAgent = name
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// create creates a Node, which is born armed, in a boot.
func (e *environment) create(t *testing.T, name string, taints ...corev1.Taint) *corev1.Node {
	t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Spec:       corev1.NodeSpec{Taints: taints},
	}
	if _, err := e.admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating node: %v", err)
	}
	return e.patch(t, e.admin, name, map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"bootID": boot}}}, "status")
}

const boot = "de2d9a80-35f2-44b5-bea4-72f10b303c45"

// patch writes a merge patch and returns what became of the Node.
func (e *environment) patch(t *testing.T, client kubernetes.Interface, name string, merge map[string]any, subresources ...string) *corev1.Node {
	t.Helper()
	data, err := json.Marshal(merge)
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
	if err != nil {
		t.Fatalf("patching node: %v", err)
	}
	return node
}

func annotate(key, value string) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}}
}

// heartbeat is one that the Node's agent could have written at a time, but for
// changes.
func (e *environment) heartbeat(t *testing.T, node *corev1.Node, at time.Time, changes ...func(*gate.Heartbeat)) map[string]any {
	t.Helper()
	hb := gate.Heartbeat{Ready: true, Time: at.UTC().Truncate(time.Second), TTL: time.Minute, BootID: boot, NodeUID: node.UID}
	for _, change := range changes {
		change(&hb)
	}
	value, err := hb.Format()
	if err != nil {
		t.Fatal(err)
	}
	return annotate(e.gate.HeartbeatAnnotation(), value)
}

// bypass is one that ends at a time.
func (e *environment) bypass(t *testing.T, until time.Time) map[string]any {
	t.Helper()
	value, err := gate.Bypass{Until: until.UTC().Truncate(time.Second), Reason: "test"}.Format()
	if err != nil {
		t.Fatal(err)
	}
	return annotate(e.gate.BypassAnnotation(), value)
}

// counts are the values of a counter by its labels' values, each behind a slash, in
// the order of the labels' names.
func counts(t *testing.T, register func(prometheus.Registerer) error, name string) map[string]int {
	t.Helper()
	registry := prometheus.NewRegistry()
	if err := register(registry); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]int{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := ""
			for _, label := range metric.GetLabel() {
				labels += "/" + label.GetValue()
			}
			counted[labels] = int(metric.GetCounter().GetValue())
		}
	}
	return counted
}
