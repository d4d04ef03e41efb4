//go:build linux

package fleet

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

const (
	boot     = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	nextBoot = "0f3c9c54-7d0e-4a53-9d0b-6a2f7a1b5e11"
)

// fleet is a cluster of many Nodes that are open, each with an agent's pod and two
// of other kinds. Its states are put straight into etcd.
type fleet struct {
	*cluster.Cluster
	admin kubernetes.Interface
	size  int
	// kubeconfig is the admin's.
	kubeconfig string
}

func newFleet(ctx context.Context, dir string, size int) (*fleet, error) {
	// Nodes are stored so often that etcd would be full before the API server's
	// usual compaction.
	c, err := cluster.Start(cluster.WithFlag("etcd-compaction-interval", "20s"))
	if err != nil {
		return nil, err
	}
	f := &fleet{Cluster: c}
	if f.admin, err = kubernetes.NewForConfig(c.Admin); err != nil {
		return f, err
	}
	if f.kubeconfig, err = c.Kubeconfig(dir); err != nil {
		return f, err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gate.Namespace}}
	if _, err := f.admin.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return f, err
	}
	if _, err := f.admin.AppsV1().DaemonSets(gate.Namespace).Create(ctx, daemonSet(), metav1.CreateOptions{}); err != nil {
		return f, err
	}
	return f, f.grow(ctx, size)
}

// grow adds Nodes up to a size.
func (f *fleet) grow(ctx context.Context, size int) error {
	var nodes []*corev1.Node
	var pods []*corev1.Pod
	for i := f.size; i < size; i++ {
		nodes = append(nodes, newNode(i, boot, time.Now()))
		pods = append(pods, newPod(i, gate.Namespace, gate.AgentLabelValue), newPod(i, "default", "web"), newPod(i, "default", "database"))
	}
	f.size = size
	write, err := f.PreparePut(nodes, pods)
	if err != nil {
		return err
	}
	return write(ctx)
}

// prepare returns what puts Nodes back into the state in which they were created,
// but of this boot. It is done as fast as can be.
func (f *fleet) prepare(count int, bootID string) (func(context.Context) error, error) {
	var nodes []*corev1.Node
	for i := range count {
		nodes = append(nodes, newNode(i, bootID, time.Now()))
	}
	return f.PreparePut(nodes, nil)
}

// put does so at once.
func (f *fleet) put(ctx context.Context, count int, bootID string) error {
	write, err := f.prepare(count, bootID)
	if err != nil {
		return err
	}
	return write(ctx)
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func nodeUID(i int) types.UID {
	return types.UID(fmt.Sprintf("0deb1067-949c-4b9d-8907-%012d", i))
}

// newNode is of about 20 KiB, most of it images, as are those of clusters that have
// run for a while.
func newNode(i int, bootID string, now time.Time) *corev1.Node {
	heartbeat := gate.Heartbeat{Ready: true, Time: now.Truncate(time.Second), TTL: gate.MaxTTL, BootID: boot, NodeUID: nodeUID(i)}
	value, err := heartbeat.Format()
	if err != nil {
		panic(err) // nothing in it depends on anything
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(i), UID: nodeUID(i), CreationTimestamp: metav1.NewTime(now.Add(-24 * time.Hour)),
			Labels: map[string]string{
				"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": nodeName(i),
				"node.kubernetes.io/instance-type": "m5.2xlarge", "topology.kubernetes.io/region": "eu-west-1",
				"topology.kubernetes.io/zone": fmt.Sprintf("eu-west-1%c", 'a'+i%3), "example.com/pool": "general",
			},
			Annotations: map[string]string{
				gate.HeartbeatPrefix + gate.DefaultName:                  value,
				"node.alpha.kubernetes.io/ttl":                           "300",
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
			},
		},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{BootID: bootID, KubeletVersion: "v1.37.2", OSImage: "Debian GNU/Linux 12"},
			Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi")},
		},
	}
	for _, condition := range []corev1.NodeConditionType{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"} {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: condition, Status: corev1.ConditionFalse, Reason: "KubeletSaysSo", Message: "kubelet has reported so",
			LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		})
	}
	for j := range 100 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{SizeBytes: int64(j) << 20, Names: []string{
			fmt.Sprintf("registry.example.com/project/some-image-name@sha256:%x", sha256.Sum256(fmt.Append(nil, j))), fmt.Sprintf("registry.example.com/project/some-image-name:v1.%d", j),
		}})
	}
	return node
}

func newPod(i int, namespace, app string) *corev1.Pod {
	now := metav1.NewTime(time.Now())
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%05d", app, i), Namespace: namespace, UID: types.UID(fmt.Sprintf("%.8s-949c-4b9d-8907-%012d", app+"00000000", i)),
			Labels: map[string]string{gate.AgentLabel: app, "controller-revision-hash": "5d4f7b9c8"}, CreationTimestamp: now,
		},
		Spec: corev1.PodSpec{
			NodeName:   nodeName(i),
			Containers: []corev1.Container{{Name: app, Image: "registry.example.com/project/" + app + ":v1"}},
		},
		Status: corev1.PodStatus{
			Phase:             corev1.PodRunning,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: app, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}},
		},
	}
	for j := range 15 {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("SOME_SETTING_%d", j), Value: "some value of some length"})
	}
	return pod
}

func daemonSet() *appsv1.DaemonSet {
	agent := map[string]string{gate.AgentLabel: gate.AgentLabelValue}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: gate.AgentAccount, Namespace: gate.Namespace},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: agent},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: agent},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
			},
		},
	}
}

// report has every Node's kubelet and agent write within a period, one after the
// other, until the context ends. It returns how many writes there were.
func (f *fleet) report(ctx context.Context, period time.Duration) int {
	tick := time.NewTicker(period / time.Duration(2*f.size))
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for writes := 0; ; writes++ {
		select {
		case <-ctx.Done():
			return writes
		case <-tick.C:
		}
		wg.Go(func() { f.write(ctx, writes) })
	}
}

// write is a kubelet's status or an agent's heartbeat, in turns. One that fails is
// of no account.
func (f *fleet) write(ctx context.Context, number int) {
	i := number / 2 % f.size
	if number%2 == 0 {
		status := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
		_, _ = f.admin.CoreV1().Nodes().Patch(ctx, nodeName(i), types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status")
		return
	}
	heartbeat := gate.Heartbeat{Ready: true, Time: time.Now().Truncate(time.Second), TTL: gate.MaxTTL, BootID: boot, NodeUID: nodeUID(i)}
	if value, err := heartbeat.Format(); err == nil {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, gate.HeartbeatPrefix+gate.DefaultName, value)
		_, _ = f.admin.CoreV1().Nodes().Patch(ctx, nodeName(i), types.MergePatchType, patch, metav1.PatchOptions{})
	}
}
