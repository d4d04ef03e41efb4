package guard

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
	"github.com/nodegate/nodegate/test/cluster"
)

// TestShouldRun_AsTheController: of every one of these DaemonSets and Nodes, the
// DaemonSet controller itself makes pods where it is said to. The gate's taint, and
// NoSchedule of nodes that are not ready or reachable, are left out: of these we
// differ.
func TestShouldRun_AsTheController(t *testing.T) {
	t.Parallel()
	c := cluster.ForTest(t)
	admin, err := client.New(c.Admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	create := func(object client.Object) {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gate.Namespace}})
	var nodes []*corev1.Node
	for name, change := range taintedNodes() {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a", "cores": "8"}}}
		create(node)
		node.Spec.Taints = nil // as not ready, which admission has put there
		change(node)
		if err := admin.Update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, node)
	}
	var sets []*appsv1.DaemonSet
	for name, change := range templates() {
		ds := agentDaemonSet()
		ds.Name = name
		ds.Spec.Selector.MatchLabels = map[string]string{"set": name}
		ds.Spec.Template.Labels = ds.Spec.Selector.MatchLabels
		change(&ds.Spec.Template.Spec)
		create(ds)
		sets = append(sets, ds)
	}
	startDaemonSetController(t, c)
	for _, ds := range sets {
		var want []string
		for _, node := range nodes {
			if placement.ShouldRun(ds, node, gate.DefaultGate()) {
				want = append(want, node.Name)
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, placed(t, admin, ds)); diff != "" {
			t.Errorf("%s runs on (-we say +the controller says):\n%s", ds.Name, diff)
		}
	}
}

func taintedNodes() map[string]func(*corev1.Node) {
	tainted := func(key string, effect corev1.TaintEffect) func(*corev1.Node) {
		return func(node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: effect, Value: "x"})
		}
	}
	nodes := map[string]func(*corev1.Node){
		"plain":    func(*corev1.Node) {},
		"zone-b":   func(node *corev1.Node) { node.Labels["zone"] = "b" },
		"unzoned":  func(node *corev1.Node) { delete(node.Labels, "zone") },
		"cordoned": func(node *corev1.Node) { node.Spec.Unschedulable = true },
		"many-taints": func(node *corev1.Node) {
			for i := range 100 {
				tainted(fmt.Sprintf("example.com/%d", i), corev1.TaintEffectNoSchedule)(node)
			}
		},
		"gate-key-no-execute": tainted(gate.DefaultTaintKey, corev1.TaintEffectNoExecute),
		"not-ready-execute":   tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute),
		"unreachable-execute": tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute),
	}
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule} {
		for name, key := range map[string]string{
			"dedicated": "dedicated", "disk": corev1.TaintNodeDiskPressure, "memory": corev1.TaintNodeMemoryPressure, "pids": corev1.TaintNodePIDPressure,
			"unschedulable": corev1.TaintNodeUnschedulable, "network": corev1.TaintNodeNetworkUnavailable, "shutdown": corev1.TaintNodeOutOfService,
			"uninitialized": "node.cloudprovider.kubernetes.io/uninitialized",
		} {
			nodes[name+"-"+strings.ToLower(string(effect))] = tainted(key, effect)
		}
	}
	return nodes
}

func templates() map[string]func(*corev1.PodSpec) {
	requires := func(terms ...corev1.NodeSelectorTerm) func(*corev1.PodSpec) {
		return func(pod *corev1.PodSpec) {
			pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
			}}
		}
	}
	label := func(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	named := func(operator corev1.NodeSelectorOperator, name string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: operator, Values: []string{name}}}}
	}
	tolerates := func(tolerations ...corev1.Toleration) func(*corev1.PodSpec) {
		return func(pod *corev1.PodSpec) { pod.Tolerations = tolerations }
	}
	return map[string]func(*corev1.PodSpec){
		"plain":            func(*corev1.PodSpec) {},
		"host-network":     func(pod *corev1.PodSpec) { pod.HostNetwork = true },
		"selector":         func(pod *corev1.PodSpec) { pod.NodeSelector = map[string]string{"zone": "b"} },
		"in":               requires(label("zone", corev1.NodeSelectorOpIn, "b", "c")),
		"not-in":           requires(label("zone", corev1.NodeSelectorOpNotIn, "b")),
		"exists":           requires(label("zone", corev1.NodeSelectorOpExists)),
		"does-not-exist":   requires(label("zone", corev1.NodeSelectorOpDoesNotExist)),
		"greater":          requires(label("cores", corev1.NodeSelectorOpGt, "7")),
		"less":             requires(label("cores", corev1.NodeSelectorOpLt, "7")),
		"not-a-number":     requires(label("zone", corev1.NodeSelectorOpGt, "7"), label("zone", corev1.NodeSelectorOpIn, "b")),
		"either":           requires(label("zone", corev1.NodeSelectorOpIn, "b"), named(corev1.NodeSelectorOpIn, "plain")),
		"not-by-name":      requires(named(corev1.NodeSelectorOpNotIn, "plain")),
		"an-empty-term":    requires(corev1.NodeSelectorTerm{}),
		"placed":           func(pod *corev1.PodSpec) { pod.NodeName = "plain" },
		"other-scheduler":  func(pod *corev1.PodSpec) { pod.SchedulerName = "other" },
		"tolerates-all":    tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists}),
		"tolerates-effect": tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}),
		"tolerates-key":    tolerates(corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpExists}),
		"tolerates-value":  tolerates(corev1.Toleration{Key: "dedicated", Value: "x", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(1))}),
		"tolerates-other":  tolerates(corev1.Toleration{Key: "dedicated", Value: "y"}),
	}
}

// startDaemonSetController runs the controller manager's, and nothing else of it,
// until the test ends.
func startDaemonSetController(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	kubeconfig, err := c.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	manager := exec.Command(filepath.Join(os.Getenv(cluster.AssetsVariable), "kube-controller-manager"), "--kubeconfig="+kubeconfig,
		"--leader-elect=false", "--secure-port=0", "--controllers=daemonset-controller", "--kube-api-qps=500", "--kube-api-burst=500")
	if err := manager.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = manager.Process.Kill()
		_ = manager.Wait() // how it ends is of no account
	})
}

// placed are the names of the Nodes for which the controller has made pods, when it
// has made all.
func placed(t *testing.T, admin client.Client, ds *appsv1.DaemonSet) []string {
	t.Helper()
	var names []string
	err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		if err := admin.List(ctx, &pods, client.InNamespace(ds.Namespace), client.MatchingLabels(ds.Spec.Selector.MatchLabels)); err != nil {
			return false, err
		}
		names = nil
		for i := range pods.Items {
			names = append(names, nodeOf(&pods.Items[i]))
		}
		err := admin.Get(ctx, client.ObjectKeyFromObject(ds), ds)
		return ds.Status.ObservedGeneration == ds.Generation && int(ds.Status.DesiredNumberScheduled) == len(names), err
	})
	if err != nil {
		t.Fatalf("waiting for the pods of %s: %v", ds.Name, err)
	}
	slices.Sort(names)
	return names
}

// nodeOf is where a pod must go: the controller says it by an affinity.
func nodeOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	return pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
}
