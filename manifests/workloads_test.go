package manifests_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
)

// templates are the pods that are rendered, by the names of their workloads.
func templates(t *testing.T, o manifests.Options) map[string]corev1.PodTemplateSpec {
	t.Helper()
	objects, err := manifests.Install(o)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]corev1.PodTemplateSpec{}
	for _, object := range objects {
		switch object.GetKind() {
		case "Deployment":
			var workload appsv1.Deployment
			convert(t, object, &workload)
			found[workload.Name] = workload.Spec.Template
		case "DaemonSet":
			var workload appsv1.DaemonSet
			convert(t, object, &workload)
			found[workload.Name] = workload.Spec.Template
		}
	}
	if len(found) != 2 {
		t.Fatalf("%d workloads, want controller and agent", len(found))
	}
	return found
}

// TestWorkloads_TheWebhookOutlivesItsEndpoint: a replica that ends answers until API
// servers are led to the others. A call that reaches nobody lets the write pass.
func TestWorkloads_TheWebhookOutlivesItsEndpoint(t *testing.T) {
	for _, mutation := range []manifests.Mutation{manifests.ByWebhook, manifests.ByWebhookWithCertManager} {
		pod := templates(t, manifests.Options{Config: baseConfig(t), Mutation: mutation})[gate.ControllerAccount]
		lifecycle := pod.Spec.Containers[0].Lifecycle
		if lifecycle == nil || lifecycle.PreStop == nil || lifecycle.PreStop.Sleep == nil || lifecycle.PreStop.Sleep.Seconds < 5 {
			t.Errorf("%s: lifecycle %v", mutation, lifecycle)
		}
	}
}

// TestWorkloads_MountNoMoreThanChecksNeed: of the host the agent sees the
// directories of its checks, each once, and writes to none but that of the lists
// which it mends.
func TestWorkloads_MountNoMoreThanChecksNeed(t *testing.T) {
	const head = "apiVersion: nodegate.io/v1alpha1\nkind: Configuration\ngates:\n"
	for name, tc := range map[string]struct {
		gates string
		want  []string
	}{
		"sockets of one directory": {"- {name: a, taint: {key: a/b}, checks: [{socket: {path: /run/a/x}}, {name: z, socket: {path: /run/a/z}}]}\n", []string{"/run/a"}},
		"a chained plugin":         {"- {name: a, taint: {key: a/b}, checks: [{conflist: {pluginType: x}}]}\n", []string{"/etc/cni/net.d", "/opt/cni/bin"}},
		"two gates": {"- {name: a, taint: {key: a/b}, checks: [{file: {path: /run/a/f}}]}\n" +
			"- {name: b, taint: {key: a/c}, checks: [{file: {path: /run/b/f}}]}\n", []string{"/run/a", "/run/b"}},
		"what needs none":     {"- {name: a, taint: {key: a/b}, checks: [{http: {port: 80}}, {pod: {namespace: x, selector: {matchLabels: {a: b}}}}]}\n", nil},
		"a plugin of its own": {"- {name: a, taint: {key: a/b}, checks: [{conflist: {pluginType: nodegate-cni}}]}\ncni: {}\n", []string{"/etc/cni/net.d", "/opt/cni/bin", "/run/nodegate"}},
		"another's agent": {"- {name: a, taint: {key: a/b}, checks: [{http: {port: 80}}]}\n" +
			"- {name: b, taint: {key: a/c}, agent: {namespace: mesh}, checks: [{socket: {path: /run/b/s}}]}\n", nil},
	} {
		pod := templates(t, manifests.Options{Config: head + tc.gates})[gate.AgentAccount].Spec
		paths := map[string]string{}
		var got []string
		for _, volume := range pod.Volumes {
			if volume.HostPath != nil {
				paths[volume.Name] = volume.HostPath.Path
				got = append(got, volume.HostPath.Path)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
		if len(paths) != len(got) {
			t.Errorf("%s: volumes share a name: %v", name, paths)
		}
		for _, mount := range pod.Containers[0].VolumeMounts {
			path, ofHost := paths[mount.Name]
			if mount.ReadOnly == (path == gate.DefaultNetDir || path == "/run/nodegate") || ofHost && path != mount.MountPath {
				t.Errorf("%s: %s is mounted at %s, read only: %t", name, path, mount.MountPath, mount.ReadOnly)
			}
		}
	}
	// What is installed with the agent needs to write where the agent does not.
	installing := templates(t, manifests.Options{Config: head + "- {name: a, taint: {key: a/b}, checks: [{socket: {path: /run/a/x}}, {conflist: {pluginType: nodegate-cni}}]}\ncni: {}\n"})[gate.AgentAccount].Spec
	var writes []string
	for _, mount := range installing.InitContainers[0].VolumeMounts {
		if !mount.ReadOnly {
			writes = append(writes, mount.MountPath)
		}
	}
	if diff := cmp.Diff([]string{"/etc/cni/net.d", "/opt/cni/bin"}, writes); diff != "" {
		t.Errorf("the installer writes: -want +got:\n%s", diff)
	}
	_, err := manifests.Install(manifests.Options{Config: head + "- {name: a, taint: {key: a/b}, checks: [{socket: {path: /s}}]}\n"})
	if err == nil || !strings.Contains(err.Error(), "root directory") {
		t.Errorf("a socket in the root directory: %v", err)
	}
}

// TestInstall_OnAnAPIServer: what kubectl makes of the overlays is taken with no
// field unknown, changes nothing the second time, and does what it is for.
func TestInstall_OnAnAPIServer(t *testing.T) {
	c := cluster.ForTest(t)
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := c.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, overlay := range []string{"overlays/default", "overlays/webhook"} {
		expectApplies(t, kubeconfig, overlay)
	}
	t.Run("pod security", func(t *testing.T) { expectPodSecurity(t, admin) })
	t.Run("flow schema", func(t *testing.T) { expectFlowSchema(t, c, admin) })
}

// expectApplies applies an overlay three times: a warning is as bad as an error.
func expectApplies(t *testing.T, kubeconfig, overlay string) {
	t.Helper()
	apply := func(args ...string) string {
		t.Helper()
		args = append([]string{"--kubeconfig=" + kubeconfig, "apply", "-k", overlay, "--validate=strict", "--warnings-as-errors"}, args...)
		said, err := exec.CommandContext(t.Context(), filepath.Join(os.Getenv(cluster.AssetsVariable), "kubectl"), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, said)
		}
		return string(said)
	}
	apply()
	for _, again := range []string{apply("--dry-run=server"), apply()} {
		for line := range strings.Lines(again) {
			// kubectl replaces the spec of a budget even by the same one.
			if !strings.Contains(line, " unchanged") && !strings.HasPrefix(line, "poddisruptionbudget") {
				t.Errorf("%s, applied again: %s", overlay, line)
			}
		}
	}
}

// expectPodSecurity: the controller is let into any namespace, and the agent only
// where the host may be used.
func expectPodSecurity(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	for level, want := range map[string]map[string]bool{
		"restricted": {gate.ControllerAccount: true, gate.AgentAccount: false},
		"baseline":   {gate.ControllerAccount: true, gate.AgentAccount: false},
		"privileged": {gate.ControllerAccount: true, gate.AgentAccount: true},
	} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "level-" + level, Labels: map[string]string{"pod-security.kubernetes.io/enforce": level},
		}}
		if _, err := admin.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for name, template := range templates(t, manifests.Options{Config: baseConfig(t), Mutation: manifests.ByWebhook}) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: template.Spec}
			_, err := admin.CoreV1().Pods(namespace.Name).Create(t.Context(), pod, metav1.CreateOptions{})
			if err != nil && !apierrors.IsForbidden(err) || (err == nil) != want[name] {
				t.Errorf("%s at level %s: %v", name, level, err)
			}
		}
	}
}

// expectFlowSchema: what controller and agent write does not wait behind other
// accounts.
func expectFlowSchema(t *testing.T, c *cluster.Cluster, admin kubernetes.Interface) {
	t.Helper()
	schema, err := admin.FlowcontrolV1().FlowSchemas().Get(t.Context(), "nodegate", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, account := range []string{gate.ControllerAccount, gate.AgentAccount} {
		identity, err := c.AccountToken(t.Context(), gate.Namespace, account)
		if err != nil {
			t.Fatal(err)
		}
		web, err := rest.HTTPClientFor(identity)
		if err != nil {
			t.Fatal(err)
		}
		// An API server takes a schema over some seconds after it was made.
		err = cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, identity.Host+"/api/v1/nodes/none", http.NoBody)
			if err != nil {
				return false, err
			}
			answer, err := web.Do(request)
			if err != nil {
				return false, err
			}
			return answer.Header.Get("X-Kubernetes-Pf-Flowschema-Uid") == string(schema.UID), answer.Body.Close()
		})
		if err != nil {
			t.Errorf("requests of %s are not of the flow schema: %v", account, err)
		}
	}
}
