package behaviour

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/cli"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/docs"
)

// operated is the node that docs/operate.md is about, agentPod the agent's pod on it.
const (
	operated = "node-1"
	agentPod = "nodegate-agent-abcde"
)

// TestOperate: every command of docs/operate.md does and writes what stands there, on
// a node that is in the state which the section is about.
func TestOperate(t *testing.T) {
	e := newEnvironment(t)
	installPolicies(t, e)
	kubeconfig, err := e.cluster.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	shell := docs.NewShell(t, kubeconfig, docs.Build(t))
	run := func(t *testing.T, section docs.Section) {
		t.Run(section.Title, func(t *testing.T) {
			e.prepare(t, section.Title)
			for _, command := range section.Commands {
				shell.Run(t, command)
			}
		})
	}
	sections := docs.Sections(t, "operate.md")
	last := slices.IndexFunc(sections, func(s docs.Section) bool { return s.Title == "No guard runs" })
	t.Run("with a guard", func(t *testing.T) {
		e.install(t)
		e.installWorkloads(t)
		e.createAgentPod(t)
		e.awaitGuard(t)
		for _, section := range sections[:last] {
			run(t, section)
		}
	})
	for _, section := range sections[last:] {
		run(t, section)
	}
	e.expectAllSeen(t, kubeconfig)
}

// expectAllSeen: with the rights that the document gives, nothing is left to be seen.
func (e *environment) expectAllSeen(t *testing.T, kubeconfig string) {
	t.Helper()
	cache := t.TempDir()
	var said string
	err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		for _, command := range [][]string{{"status"}, {"explain", operated}, {"version"}} {
			var out, errOut bytes.Buffer
			streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut}
			cli.Run(ctx, streams, append(command, "--kubeconfig="+kubeconfig, "--cache-dir="+cache, "--as=jane", "--as-group=on-call", "--as-group=system:authenticated"))
			if said = errOut.String(); said != "" || out.Len() == 0 {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		t.Errorf("who may look sees not all: %v\n%s", err, said)
	}
}

// prepare makes the node anew and brings it into the state that a section is about.
func (e *environment) prepare(t *testing.T, section string) {
	t.Helper()
	node := e.createOperated(t)
	beat := func(ahead time.Duration, changes ...func(*gate.Heartbeat)) {
		e.patch(t, e.admin, node.Name, e.heartbeat(t, node, time.Now().Add(ahead), changes...))
	}
	switch section {
	case "Look first":
		e.awaitEvent(t, node, "Created")
	case "Fresh":
		open(t, e, node, 0)
	case "Malformed":
		e.patch(t, e.admin, node.Name, annotate(e.gate.HeartbeatAnnotation(), "by hand"))
	case "OtherNode":
		beat(0, func(hb *gate.Heartbeat) { hb.NodeUID = "11111111-949c-4b9d-8907-4eaeaea221b2" })
	case "OtherBoot":
		beat(0, func(hb *gate.Heartbeat) { hb.BootID = nextBoot })
	case "NotReady":
		beat(0, func(hb *gate.Heartbeat) {
			hb.Ready, hb.Extra = false, []gate.Token{{Key: gate.TokenFailing, Value: "socket"}}
		})
	case "FromFuture":
		beat(time.Hour)
	case "Expired":
		beat(-time.Hour)
	case "An agent that is gone":
		beat(0)
		e.setAgentReady(t, corev1.ConditionFalse)
		t.Cleanup(func() { e.setAgentReady(t, corev1.ConditionTrue) })
	case "Bypassed":
		e.nodegate(t, "bypass", operated, "--for=1h", "--reason=the image cannot be pulled")
	case "Where no agent can run":
		e.patchDaemonSet(t, `{"spec":{"template":{"spec":{"nodeSelector":{"example.com/agent":"here"}}}}}`)
		t.Cleanup(func() { e.patchDaemonSet(t, `{"spec":{"template":{"spec":{"nodeSelector":null}}}}`) })
	case "What a gate has left":
		noted := []byte(`{"metadata":{"annotations":{"nodegate.io/retired":"mesh=mesh.example.com/agent-not-ready"}}}`)
		if _, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Patch(t.Context(), gate.ConfigMapName, types.MergePatchType, noted, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		taints := append(slices.Clone(node.Spec.Taints), corev1.Taint{Key: "mesh.example.com/agent-not-ready", Effect: corev1.TaintEffectNoSchedule})
		e.patch(t, e.admin, node.Name, map[string]any{"spec": map[string]any{"taints": taints}})
	case "Admission is not as the configuration has it":
		patch := `[{"op":"add","path":"/spec/matchConditions/-","value":{"name":"narrowed","expression":"object.metadata.name != 'mine'"}}]`
		_, err := e.admin.AdmissionregistrationV1().MutatingAdmissionPolicies().Patch(t.Context(), "update.agent.nodegate.io", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// createOperated creates the node anew, whose kubelet is a stand-in that has logs.
func (e *environment) createOperated(t *testing.T) *corev1.Node {
	t.Helper()
	err := e.admin.CoreV1().Nodes().Delete(t.Context(), operated, metav1.DeleteOptions{})
	if err == nil {
		err = cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
			nodes, err := e.admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			return err == nil && len(nodes.Items) == 0, err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	e.create(t, operated)
	host, port := kubelet(t)
	return e.patch(t, e.admin, operated, map[string]any{"status": map[string]any{
		"addresses":       []any{map[string]any{"type": corev1.NodeInternalIP, "address": host}},
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": port}},
	}}, "status")
}

// kubelet serves what kubectl logs asks of one.
func kubelet(t *testing.T) (host string, port int) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/containerLogs/") {
			http.NotFound(w, r)
			return
		}
		_, _ = fmt.Fprintln(w, `{"level":"INFO","msg":"Gate's readiness changed"}`)
	}))
	t.Cleanup(server.Close)
	host, text, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if port, err = strconv.Atoi(text); err != nil {
		t.Fatal(err)
	}
	return host, port
}

// installWorkloads applies what would run.
func (e *environment) installWorkloads(t *testing.T) {
	t.Helper()
	config := strings.Replace(configText, "agent-not-ready}", "agent-not-ready}, checks: [{socket: {path: /run/example/cni.sock}}]", 1)
	objects, err := manifests.Workloads(manifests.Options{Config: config})
	if err != nil {
		t.Fatal(err)
	}
	objects = slices.DeleteFunc(objects, func(object *unstructured.Unstructured) bool {
		return object.GetKind() != "DaemonSet" && object.GetKind() != "Deployment"
	})
	if err := e.cluster.Apply(t.Context(), objects); err != nil {
		t.Fatal(err)
	}
}

func (e *environment) patchDaemonSet(t *testing.T, patch string) {
	t.Helper()
	_, err := e.admin.AppsV1().DaemonSets(gate.Namespace).Patch(context.WithoutCancel(t.Context()), gate.AgentAccount, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// createAgentPod creates the pod that the DaemonSet would have there, and says that it
// is Ready.
func (e *environment) createAgentPod(t *testing.T) {
	t.Helper()
	ds, err := e.admin.AppsV1().DaemonSets(gate.Namespace).Get(t.Context(), gate.AgentAccount, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: agentPod, Namespace: gate.Namespace, Labels: ds.Spec.Template.Labels,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ds, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))},
	}, Spec: corev1.PodSpec{
		NodeName: operated, Containers: []corev1.Container{{Name: "agent", Image: "nodegate-agent:dev"}},
		Tolerations: ds.Spec.Template.Spec.Tolerations,
	}}
	if _, err = e.admin.CoreV1().Pods(gate.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.setAgentReady(t, corev1.ConditionTrue)
}

func (e *environment) setAgentReady(t *testing.T, ready corev1.ConditionStatus) {
	t.Helper()
	ctx, pods := context.WithoutCancel(t.Context()), e.admin.CoreV1().Pods(gate.Namespace)
	pod, err := pods.Get(ctx, agentPod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status = corev1.PodStatus{
		Phase:             corev1.PodRunning,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.Now()}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "agent", Ready: ready == corev1.ConditionTrue, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}},
	}
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitGuard waits until one tells of what happens: of what it finds when it begins to
// look it tells nothing.
func (e *environment) awaitGuard(t *testing.T) {
	t.Helper()
	nodes := e.admin.CoreV1().Nodes()
	err := wait.PollUntilContextTimeout(t.Context(), 500*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		probe := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-", Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
		if _, err := nodes.Create(ctx, probe, metav1.CreateOptions{}); err != nil {
			return false, err
		}
		told, err := e.admin.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=Created"})
		return err == nil && len(told.Items) > 0, err
	})
	if err != nil {
		t.Fatalf("waiting for the guard: %v", err)
	}
	if err := nodes.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitEvent waits until the guard has told of the node.
func (e *environment) awaitEvent(t *testing.T, node *corev1.Node, reason string) {
	t.Helper()
	err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		told, err := e.admin.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.uid=" + string(node.UID) + ",reason=" + reason,
		})
		return err == nil && len(told.Items) > 0, err
	})
	if err != nil {
		t.Fatalf("waiting for the Event %s: %v", reason, err)
	}
}
