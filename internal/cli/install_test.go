package cli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
)

const checkedGate = head + "gates: [{name: agent, taint: {key: nodegate.io/agent-not-ready}, checks: [{socket: {path: /run/x/y.sock}}]}]\n"

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gates.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // the libraries'
	os.Exit(m.Run())
}

func newEnvironment(t *testing.T, options ...cluster.Option) *environment {
	t.Helper()
	e := &environment{cluster: cluster.ForTest(t, options...)}
	var err error
	if e.admin, err = kubernetes.NewForConfig(e.cluster.Admin); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := e.cluster.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e.flags = []string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + t.TempDir()}
	return e
}

func (e *environment) node(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if _, err := e.admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestInstall: step by step, on a cluster in which no controller makes pods.
func TestInstall(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	file := writeFile(t, checkedGate)
	e.expect(t, codeFailed, "name a file by --config", "install")
	e.expect(t, codeFailed, "nodegate is not installed in this cluster, or not whole", "upgrade", "--config="+file)
	e.expect(t, codeFailed, "you may not:\n  get, create, patch namespaces\n", "install", "--config="+file, "--as=nobody")
	e.expect(t, codeFailed, `set it there by hand`, "install", "--mode=paused", "--config="+writeFile(t, head+"mode: !!str enforce\n"))

	elsewhere := head + "gates: [{name: a, taint: {key: a/b}, checks: [{pod: {namespace: mesh, selector: {matchLabels: {a: b}}}}]}]\n"
	e.expect(t, codeFailed, "nothing was changed:\n- namespace mesh does not exist", "install", "--config="+writeFile(t, elsewhere))

	out, _, code := e.run(t, "install", "--config="+file, "--dry-run=server")
	if code != codeDone || strings.Count(out, "created (") != len(e.objects(t, checkedGate)) {
		t.Errorf("a dry run: exit code %d\n%s", code, out)
	}
	e.expectNothing(t)
	both := strings.Replace(elsewhere, "checks: [", "checks: [{name: q, pod: {namespace: disks, selector: {matchLabels: {a: b}}}}, ", 1)
	out, errOut, code := e.run(t, "install", "--config="+writeFile(t, both))
	if code != codeFailed || strings.Count(out+errOut, "\n- namespace ") != 2 {
		t.Errorf("two faults have no line of their own: exit code %d\n%s%s", code, out, errOut)
	}

	e.node(t, "mac", map[string]string{corev1.LabelOSStable: "darwin"})
	e.expect(t, codeDone, "They name no registry", "install", "--config="+file, "--dry-run=server")
	e.expect(t, codeDone, "ConfigMap nodegate-system/nodegate-config created", "install", "--config="+file, "--timeout=0", "--mode=observe")
	e.expectMode(t, gate.ModeObserve)
	out, _, code = e.run(t, "install", "--timeout=0")
	if code != codeDone || strings.Contains(out, "created") || strings.Contains(out, "configured") {
		t.Errorf("the same again: exit code %d\n%s", code, out)
	}
	e.expect(t, codeDone, "configured", "install", "--timeout=0", "--mode=enforce")
	e.expectMode(t, gate.ModeEnforce)

	// What other commands have set does not stay behind.
	e.expect(t, codeDone, "set to mode paused", "pause", "--timeout=0")
	e.expect(t, codeDone, "unchanged", "upgrade", "--timeout=0")
	e.expectMode(t, gate.ModePaused)
	e.expect(t, codeDone, "configured", "upgrade", "--timeout=0", "--mode=enforce")
	e.expectMode(t, gate.ModeEnforce)

	t.Run("interrupted", e.interrupted)
	t.Run("half of it", e.half)
	t.Run("nodes without agents", e.withoutAgents)
	t.Run("images", e.images)
	t.Run("conflicts", e.conflicts)
	t.Run("another configuration", e.anotherConfiguration)
	t.Run("a broken configuration", e.broken)
	t.Run("unseen", e.unseen)
	t.Run("left", e.left)
	t.Run("another mutation", e.anotherMutation)
	t.Run("a namespace that is going", e.going)
}

// interrupter ends a context when something is written.
type interrupter struct {
	strings.Builder
	at  string
	end context.CancelFunc
}

func (i *interrupter) Write(p []byte) (int, error) {
	n, err := i.Builder.Write(p)
	if strings.Contains(i.String(), i.at) {
		i.end()
	}
	return n, err
}

// interrupted: wherever a signal comes, that is what is said, and to run it again.
func (e *environment) interrupted(t *testing.T) {
	for _, at := range []string{"Images ", "for the controller to run", "for the rules on who may write", "for the guard to be in mode"} {
		ctx, cancel := context.WithCancel(t.Context())
		said := &interrupter{at: at, end: cancel}
		args := append([]string{"install", "--config=" + writeFile(t, checkedGate), "--timeout=2s"}, e.flags...)
		code := Run(ctx, genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: said}, args)
		cancel()
		if !strings.HasSuffix(said.String(), "Error: interrupted: what is said above to be done is done; run it again for the rest\n") ||
			strings.Contains(said.String(), "context canceled") || code != codeFailed {
			t.Errorf("interrupted at %q: exit code %d\n%s", at, code, said)
		}
	}
}

// TestExplain_Forbidden: what admission refuses is refused to everybody.
func TestExplain_Forbidden(t *testing.T) {
	deployment := newObject(appsv1.SchemeGroupVersion.WithKind("Deployment"), gate.Namespace, gate.ControllerAccount)
	for why, want := range map[string]bool{
		`User "u" cannot create resource "deployments" in API group "apps" in the namespace "nodegate-system"`:                      true,
		`user "u" (groups=["g"]) is attempting to grant RBAC permissions not currently held:`:                                       true,
		`exceeded quota: q, requested: count/deployments.apps=1, used: count/deployments.apps=0, limited: count/deployments.apps=0`: false,
	} {
		err := explain(apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, deployment.GetName(), errors.New(why)), deployment)
		if strings.Contains(err.Error(), "as somebody who may") != want {
			t.Errorf("it says: %v", err)
		}
	}
}

// going: nothing can be made in a namespace that is being deleted, by anybody.
func (e *environment) going(t *testing.T) {
	if err := e.admin.CoreV1().Namespaces().Delete(t.Context(), gate.Namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, said, code := e.run(t, "install", "--config="+writeFile(t, checkedGate))
	const want = "Error: nothing was changed:\n- namespace nodegate-system is being deleted: run this again when it is gone; " +
		"kubectl get namespace nodegate-system -o yaml says what it waits for\n"
	if code != codeFailed || !strings.HasSuffix(said, want) {
		t.Errorf("exit code %d\n%s", code, said)
	}
}

func (e *environment) objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := manifests.Install(manifests.Options{Config: text})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// expectNothing: of what is rendered nothing is there.
func (e *environment) expectNothing(t *testing.T) {
	t.Helper()
	api, err := client.New(e.cluster.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range e.objects(t, checkedGate) {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(object), object); err == nil {
			t.Errorf("%s is there", describe(object))
		}
	}
}

// expectMode: configuration and bindings agree, and the time of installation is
// recorded.
func (e *environment) expectMode(t *testing.T, want gate.Mode) {
	t.Helper()
	object, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Get(t.Context(), gate.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := gate.ParseConfiguration([]byte(object.Data[gate.ConfigMapKey]))
	if err != nil || cfg.Mode != want {
		t.Errorf("the configuration's mode is %v (%v), want %s", cfg, err, want)
	}
	if at, err := time.Parse(gate.TimeLayout, object.Annotations[gate.InstalledAtAnnotation]); err != nil || time.Since(at) > time.Hour {
		t.Errorf("installed at %v (%v)", at, err)
	}
	bindings, err := e.admin.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(bindings.Items) == 0 {
		t.Fatalf("%d bindings (%v)", len(bindings.Items), err)
	}
	for _, binding := range bindings.Items {
		narrowed := binding.Spec.MatchResources != nil && binding.Spec.MatchResources.ObjectSelector != nil && len(binding.Spec.MatchResources.ObjectSelector.MatchExpressions) > 0
		if narrowed == (want == gate.ModeEnforce) {
			t.Errorf("mode %s: binding %s selects nothing: %t", want, binding.Name, narrowed)
		}
	}
}

// withoutAgents: nothing is enforced on Nodes that nobody could open.
func (e *environment) withoutAgents(t *testing.T) {
	e.node(t, "blue", map[string]string{"pool": "blue"})
	const another = "gates: [{name: agent, taint: {key: nodegate.io/agent-not-ready}, checks: [{socket: {path: /run/x/y.sock}}]}, {name: other, taint: {key: example.com/other}, nodeSelector: {matchLabels: {pool: blue}}, agent: {namespace: default, podLabels: {app: other}}}]\n"
	file := writeFile(t, head+another)
	e.expect(t, codeFailed, `gate "other" governs Nodes on which no agent can run, and which nobody would open: blue;`, "install", "--dry-run=server", "--config="+file)
	e.expect(t, codeDone, "configured", "install", "--dry-run=server", "--mode=observe", "--config="+file)
	labels := map[string]string{"app": "other"}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"pool": "red"}, Containers: []corev1.Container{{Name: "c", Image: "c"}},
		}},
	}}
	if _, err := e.admin.AppsV1().DaemonSets("default").Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.expect(t, codeFailed, "which nobody would open: blue;", "install", "--dry-run=server", "--config="+file)
	_, err := e.admin.AppsV1().DaemonSets("default").Patch(t.Context(), "other", types.MergePatchType,
		[]byte(`{"spec": {"template": {"spec": {"nodeSelector": {"pool": "blue"}}}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.expect(t, codeDone, "configured", "install", "--dry-run=server", "--config="+file)
}

// images: what is not said stays.
func (e *environment) images(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"", "nodegate-agent:dev"},
		{"--image-tag=v1", "nodegate-agent:v1"},
		{"--image-registry=registry.example.com:5000/n", "registry.example.com:5000/n/nodegate-agent:v1"},
		{"", "registry.example.com:5000/n/nodegate-agent:v1"},
		{"--image-tag=v2", "registry.example.com:5000/n/nodegate-agent:v2"},
		{"--image-tag=v3 --image-registry=other", "other/nodegate-agent:v3"},
	} {
		e.expect(t, codeDone, "", append([]string{"install", "--timeout=0"}, strings.Fields(tc.args)...)...)
		daemonSet, err := e.admin.AppsV1().DaemonSets(gate.Namespace).Get(t.Context(), gate.AgentAccount, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := daemonSet.Spec.Template.Spec.Containers[0].Image; got != tc.want {
			t.Errorf("%q: image %s, want %s", tc.args, got, tc.want)
		}
	}
}

// conflicts: what somebody has set on purpose is taken over only when asked for.
func (e *environment) conflicts(t *testing.T) {
	_, err := e.admin.AppsV1().Deployments(gate.Namespace).Patch(t.Context(), gate.ControllerAccount, types.MergePatchType,
		[]byte(`{"spec": {"replicas": 3}}`), metav1.PatchOptions{FieldManager: "somebody"})
	if err != nil {
		t.Fatal(err)
	}
	e.expect(t, codeFailed, "nothing was changed:\n- Deployment nodegate-system/nodegate-controller: set otherwise by others (.spec.replicas, conflict with \"somebody\"", "upgrade", "--timeout=0")
	e.expect(t, codeDone, "-  replicas: 3", "upgrade", "--dry-run=server", "--force-conflicts")
	e.expect(t, codeDone, "Deployment nodegate-system/nodegate-controller configured", "upgrade", "--timeout=0", "--force-conflicts")
}

// anotherConfiguration: agents are rolled for what they do not read anew, and for
// nothing else.
func (e *environment) anotherConfiguration(t *testing.T) {
	const chained = head + "gates: [{name: agent, taint: {key: nodegate.io/agent-not-ready}, checks: [{conflist: {pluginType: x}}]}]\n"
	for _, tc := range []struct{ text, want string }{
		{checkedGate, "DaemonSet nodegate-system/nodegate-agent unchanged"},
		{chained, "DaemonSet nodegate-system/nodegate-agent configured"},
		{strings.Replace(chained, "pluginType: x", "pluginType: x, disabled: true", 1), "DaemonSet nodegate-system/nodegate-agent unchanged"},
		{strings.Replace(chained, "pluginType: x", "pluginType: z", 1), "DaemonSet nodegate-system/nodegate-agent configured"},
	} {
		e.expect(t, codeDone, tc.want, "upgrade", "--timeout=0", "--config="+writeFile(t, tc.text))
	}
}

// half: what admits does so without a configuration, too.
func (e *environment) half(t *testing.T) {
	configs := e.admin.CoreV1().ConfigMaps(gate.Namespace)
	object, err := configs.Get(t.Context(), gate.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := configs.Delete(t.Context(), gate.ConfigMapName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	const want = "is there, and may go on closing Nodes: kubectl nodegate install --config FILE"
	e.expect(t, codeFailed, want, "status")
	e.expect(t, codeFailed, want, "pause")
	e.expect(t, codeFailed, want, "bypass", "mac", "--clear")
	e.expect(t, codeFailed, "or not whole", "upgrade")
	e.expect(t, codeDone, "mode enforce", "install", "--timeout=0", "--config="+writeFile(t, checkedGate))
	e.expectMode(t, gate.ModeEnforce)
	object.ResourceVersion, object.UID = "", ""
	if _, err := configs.Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// broken: a configuration that somebody has spoilt is replaced by another, and what
// enforces goes on.
func (e *environment) broken(t *testing.T) {
	for _, patch := range []string{`{"data": {"config.yaml": "gates: ["}}`, `{"data": null}`} {
		if _, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Patch(t.Context(), gate.ConfigMapName, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
			t.Fatal(err)
		}
		e.expect(t, codeFailed, "bring another by kubectl nodegate upgrade --config FILE", "upgrade", "--timeout=0")
		e.expect(t, codeDone, "mode enforce", "upgrade", "--timeout=0", "--force-conflicts", "--config="+writeFile(t, checkedGate))
		e.expectMode(t, gate.ModeEnforce)
	}
}

// left: what a gate that is renamed had in admission goes, and what it had on Nodes is
// noted. Where it would take its taint along, that is not done under way.
func (e *environment) left(t *testing.T) {
	out, _, _ := e.run(t, "upgrade", "--timeout=0")
	if strings.Contains(out, "removed") {
		t.Errorf("something is left of the same configuration:\n%s", out)
	}
	renamed := strings.Replace(checkedGate, "name: agent", "name: other", 1)
	file := writeFile(t, renamed)
	e.expect(t, codeFailed, `gate "other" is to have the taint of gate "agent"`, "upgrade", "--timeout=0", "--config="+file)
	e.expect(t, codeDone, "mode observe", "upgrade", "--timeout=0", "--mode=observe")
	e.expect(t, codeDone, "ValidatingAdmissionPolicyBinding writers.agent.nodegate.io removed (server dry run)", "upgrade", "--dry-run=server", "--config="+file)
	e.expect(t, codeDone, "ValidatingAdmissionPolicyBinding writers.agent.nodegate.io removed\n", "upgrade", "--timeout=0", "--config="+file)
	out, _, _ = e.run(t, "upgrade", "--timeout=0")
	if strings.Contains(out, "removed") || strings.Contains(out, "configured") {
		t.Errorf("the same again changes something:\n%s", out)
	}
	object, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Get(t.Context(), gate.ConfigMapName, metav1.GetOptions{})
	if err != nil || object.Annotations[gate.RetiredAnnotation] != "agent=nodegate.io/agent-not-ready" || !strings.HasPrefix(object.Annotations[gate.AddedAnnotation], "other=20") {
		t.Errorf("noted is %v (%v)", object.Annotations, err)
	}
}

// anotherMutation: what the other form had goes, and the form that was chosen stays.
func (e *environment) anotherMutation(t *testing.T) {
	e.expect(t, codeDone, "MutatingAdmissionPolicy update.other.nodegate.io removed\n", "install", "--timeout=0", "--mutation=webhook")
	e.expectForm(t, manifests.ByWebhook)
	e.expect(t, codeDone, "armed by webhook", "upgrade", "--timeout=0")
	e.secret(t, gate.WebhookSecret)
	e.expect(t, codeDone, "MutatingWebhookConfiguration mutate-node.nodegate.io removed\n", "install", "--timeout=0", "--mutation=policy")
	e.expectForm(t, manifests.ByPolicy)
	for _, args := range [][]string{{"upgrade", "--timeout=0"}, {"install", "--timeout=0"}} {
		out, errOut, code := e.run(t, args...)
		if code != codeDone || !strings.Contains(errOut, "armed by policies") || strings.Contains(out, "removed") {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, errOut)
		}
	}
	// One was interrupted, when both were there.
	e.install(t, manifests.Options{Config: checkedGate, Mutation: manifests.ByWebhook})
	e.expect(t, codeDone, "armed by webhook", "upgrade", "--timeout=0")
	e.expectForm(t, manifests.ByWebhook)
}

func (e *environment) secret(t *testing.T, name string) {
	t.Helper()
	if _, err := e.admin.CoreV1().Secrets(gate.Namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// expectForm: of what the forms of the mutation have each alone, only that of one is
// there.
func (e *environment) expectForm(t *testing.T, want manifests.Mutation) {
	t.Helper()
	api, err := client.New(e.cluster.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Get(t.Context(), gate.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rendered := map[string]*unstructured.Unstructured{}
	wanted := map[string]bool{}
	for _, form := range []manifests.Mutation{manifests.ByPolicy, manifests.ByWebhook} {
		objects, err := manifests.Install(manifests.Options{Config: cfg.Data[gate.ConfigMapKey], Mutation: form})
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			rendered[describe(object)] = object
			wanted[describe(object)] = wanted[describe(object)] || form == want
		}
	}
	for name, object := range rendered {
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(object), object); (err == nil) != wanted[name] {
			t.Errorf("%s: %v, it is to be there: %t", name, err, wanted[name])
		}
	}
	secrets, err := e.admin.CoreV1().Secrets(gate.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || want == manifests.ByPolicy && len(secrets.Items) > 0 {
		t.Errorf("%d Secrets (%v)", len(secrets.Items), err)
	}
}

// unseen: what is not seen to be active is named. A write of the agent that other
// admission spoils is no good.
func (e *environment) unseen(t *testing.T) {
	e.expect(t, codeUnseen, "kube-controller-manager has not acted on it yet; see kubectl -n nodegate-system describe deployment,pods -l app.kubernetes.io/part-of=nodegate\n", "install", "--timeout=2s")
	e.node(t, "linux", map[string]string{corev1.LabelOSStable: "linux"})
	e.expect(t, codeUnseen, "Trying a write of the agent, to Node linux", "install", "--timeout=1s")
	foreign := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": map[string]any{"name": "foreign"},
		"spec": map[string]any{
			"reinvocationPolicy": "Never",
			"matchConstraints": map[string]any{"resourceRules": []any{map[string]any{
				"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "operations": []any{"UPDATE"}, "resources": []any{"nodes"},
			}}},
			"mutations": []any{map[string]any{"patchType": "ApplyConfiguration", "applyConfiguration": map[string]any{
				"expression": `Object{metadata: Object.metadata{labels: {"example.com/seen": "yes"}}}`,
			}}},
		},
	}}
	binding := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding", "metadata": map[string]any{"name": "foreign"},
		"spec": map[string]any{"policyName": "foreign"},
	}}
	if err := e.cluster.Apply(t.Context(), []*unstructured.Unstructured{foreign, binding}); err != nil {
		t.Fatal(err)
	}
	err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		node, err := e.admin.CoreV1().Nodes().Patch(ctx, "linux", types.MergePatchType, []byte(`{"metadata": {"labels": {"a": "b"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && node.Labels["example.com/seen"] == "yes", err
	})
	if err != nil {
		t.Fatal(err)
	}
	e.expect(t, codeFailed, "name the key's prefix in toleratedPrefixes", "install", "--timeout=1s")
	tolerant := head + "toleratedPrefixes: [example.com/]\n" + strings.TrimPrefix(checkedGate, head)
	e.expect(t, codeUnseen, "no guard", "install", "--timeout=5s", "--config="+writeFile(t, tolerant))
}

// TestInstall_Begins: a cluster that has Nodes begins in mode observe, unless told
// otherwise.
func TestInstall_Begins(t *testing.T) {
	linux := corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	mac := corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelOSStable: "darwin"}}}
	parsed := func(mode gate.Mode) *gate.Configuration {
		cfg := gate.Default()
		cfg.Mode = mode
		return cfg
	}
	for name, tc := range map[string]struct {
		state state
		file  gate.Mode
		told  gate.Mode
		want  gate.Mode
	}{
		"an empty cluster":            {file: gate.ModeEnforce, want: gate.ModeEnforce},
		"Nodes that are not governed": {state: state{nodes: []corev1.Node{mac}}, file: gate.ModeEnforce, want: gate.ModeEnforce},
		"Nodes":                       {state: state{nodes: []corev1.Node{mac, linux}}, file: gate.ModeEnforce, want: gate.ModeObserve},
		"Nodes, told":                 {state: state{nodes: []corev1.Node{linux}}, file: gate.ModeObserve, told: gate.ModeEnforce, want: gate.ModeEnforce},
		"Nodes, paused by the file":   {state: state{nodes: []corev1.Node{linux}}, file: gate.ModePaused, want: gate.ModePaused},
		"policies that enforce, and no configuration": {state: state{nodes: []corev1.Node{linux}, enforcing: true}, file: gate.ModeEnforce, want: gate.ModeEnforce},
		"the same, observed by the file":              {state: state{nodes: []corev1.Node{linux}, enforcing: true}, file: gate.ModeObserve, want: gate.ModeEnforce},
		"an installation keeps its mode":              {state: state{nodes: []corev1.Node{linux}, parsed: parsed(gate.ModeEnforce)}, file: gate.ModeObserve, want: gate.ModeEnforce},
		"an installation, told otherwise":             {state: state{parsed: parsed(gate.ModeEnforce)}, file: gate.ModeEnforce, told: gate.ModePaused, want: gate.ModePaused},
	} {
		got, why := startingMode(tc.state, parsed(tc.file), tc.told)
		if got != tc.want || (why != "") != (tc.told == "" && got != tc.file) {
			t.Errorf("%s: mode %s, %q, want %s", name, got, why, tc.want)
		}
	}
}

// TestInstall_AfterKubectl: an installation that kubectl made goes on under this
// program, and nothing of it is lost or left over.
func TestInstall_AfterKubectl(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	kubectl := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(cluster.AssetsVariable), "kubectl"), e.flags[0], "apply", "-k", "../../manifests/overlays/webhook")
	if said, err := kubectl.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	annotated := []byte(`{"metadata": {"annotations": {"nodegate.io/installed-at": "2026-01-02T03:04:05Z"}}}`)
	if _, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Patch(t.Context(), gate.ConfigMapName, types.MergePatchType, annotated, metav1.PatchOptions{FieldManager: "kubectl-annotate"}); err != nil {
		t.Fatal(err)
	}
	more := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(cluster.AssetsVariable), "kubectl"), e.flags[0], "apply", "-k", ownOverlay(t))
	if said, err := more.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	const goes = "what kubectl has set and the installation has not goes: "
	e.expect(t, codeDone, goes+".metadata.labels.team\n", "upgrade", "--dry-run=server")
	e.expect(t, codeDone, goes+`.spec.template.spec.containers[name="agent"].env[name="TEAM"].name, `+
		`.spec.template.spec.containers[name="agent"].env[name="TEAM"].value`+"\n", "upgrade", "--dry-run=server")
	e.expect(t, codeDone, "armed by webhook, mode observe", "upgrade", "--timeout=0")
	deployment, err := e.admin.AppsV1().Deployments(gate.Namespace).Get(t.Context(), gate.ControllerAccount, metav1.GetOptions{})
	if err != nil || deployment.Labels["team"] != "" {
		t.Errorf("it did not go: %v (%v)", deployment.Labels, err)
	}
	if out, _, _ := e.run(t, "upgrade", "--dry-run=server"); strings.Contains(out, "configured") || strings.Contains(out, "goes") {
		t.Errorf("the same again:\n%s", out)
	}
	object, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Get(t.Context(), gate.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if at := object.Annotations[gate.InstalledAtAnnotation]; at != "2026-01-02T03:04:05Z" {
		t.Errorf("the time of installation is %q", at)
	}
	if _, there := object.Annotations[corev1.LastAppliedConfigAnnotation]; there {
		t.Error("kubectl's note of what it applied is left")
	}
	// As docs/operate.md has it: the same, by other means, is no conflict.
	rendered, _, _ := run(t, "render", "--mutation=webhook", "--only=admission", "--config="+writeFile(t, object.Data[gate.ConfigMapKey]))
	again := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(cluster.AssetsVariable), "kubectl"), e.flags[0], "apply", "--server-side", "--force-conflicts", "-f", "-")
	again.Stdin = strings.NewReader(rendered)
	if said, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	e.expect(t, codeDone, "ValidatingAdmissionPolicy writers.agent.nodegate.io", "upgrade", "--timeout=0")
	e.expect(t, codeDone, "configured", "install", "--timeout=0", "--mode=enforce")
	hook, err := e.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), gate.WebhookRegistration, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if selector := hook.Webhooks[0].ObjectSelector; len(selector.MatchExpressions) > 0 {
		t.Errorf("mode enforce: the webhook selects %v", selector)
	}
}

// ownOverlay changes more than the installation knows.
func ownOverlay(t *testing.T) string {
	t.Helper()
	tree, err := filepath.Abs("../../manifests")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if tree, err = filepath.Rel(dir, tree); err != nil {
		t.Fatal(err)
	}
	text := "resources: [" + tree + "/overlays/webhook]\npatches:\n- target: {kind: Deployment}\n  patch: |\n" +
		"    - {op: add, path: /metadata/labels/team, value: a}\n" +
		"- target: {kind: DaemonSet}\n  patch: |\n    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: TEAM, value: a}}\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestInstall_Refuses: what cannot be is said before anything is tried.
func TestInstall_Refuses(t *testing.T) {
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/version":
			_, _ = w.Write([]byte(`{"gitVersion": "v1.29.3"}`))
		case strings.HasSuffix(r.URL.Path, "selfsubjectaccessreviews"):
			_, _ = w.Write([]byte(`{"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "status": {"allowed": true}}`))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(old.Close)
	file := writeFile(t, checkedGate)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"an old cluster":      {[]string{"--server=" + old.URL, "--config=" + file}, "this is Kubernetes 1.29.3, which is too old"},
		"no cluster":          {[]string{"--server=http://127.0.0.1:1", "--config=" + file}, "connection refused"},
		"no kubeconfig":       {[]string{"--config=" + file}, "there is no kubeconfig"},
		"a faulty file":       {[]string{"--config=" + writeFile(t, head+"gate: []\n")}, `unknown field "gate"`},
		"an unknown mode":     {[]string{"--mode=off"}, `--mode is "off"`},
		"a client's dry run":  {[]string{"--dry-run=client"}, "for manifests use render"},
		"an unknown mutation": {[]string{"--mutation=magic"}, "policy, webhook, cert-manager"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", "/nonexistent")
			out, errOut, code := run(t, append(tc.args, "install", "--cache-dir="+t.TempDir())...)
			if code != codeFailed || out != "" || !strings.Contains(errOut, tc.want) {
				t.Errorf("exit code %d, out %q, err %q, want an error of %q", code, out, errOut, tc.want)
			}
		})
	}
}
