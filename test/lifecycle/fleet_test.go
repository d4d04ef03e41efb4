package lifecycle

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nodegate/nodegate/agent"
	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/guardmanager"
)

const (
	boot       = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	pluginType = "mesh-cni"
	chained    = `{"cniVersion": "1.0.0", "name": "base", "plugins": [{"type": "bridge"}, {"type": "` + pluginType + `"}]}`
)

// programs is the folder of ours. The tests run side by side, for they wait more than they work.
var programs string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		ctrl.SetLogger(logr.Discard()) // the libraries'
		var err error
		if programs, err = os.MkdirTemp("", "nodegate-programs-"); err != nil {
			panic(err)
		}
		defer os.RemoveAll(programs)
		said, err := exec.Command("go", "build", "-o", programs+"/", "../../cmd/nodegate-agent", "../../cmd/nodegate-cni", "../../cmd/kubectl-nodegate").CombinedOutput()
		if err != nil {
			panic(fmt.Sprintf("%v\n%s", err, said))
		}
		return m.Run()
	}())
}

// fleet is a cluster with the controllers that make pods of workloads, and nodes
// whose kubelets are stand-ins: of nodegate's pods the agent, the guard and the
// taking out of the plugin are real, each in the way that its pod says.
type fleet struct {
	*testing.T
	cluster    *cluster.Cluster
	admin      kubernetes.Interface
	kubeconfig string
	pods       cache.Store
	wg         sync.WaitGroup

	mu      sync.Mutex
	nodes   map[string]*node
	running map[types.UID]*process
	// watched are the gates of which a node that is open has none closed.
	watched []*gate.Gate
	// dead are the nodes on which nothing happens any more.
	dead map[string]bool
}

// node is what a machine has.
type node struct {
	name, dir string
	mu        sync.Mutex
	open      bool
	flaps     int
}

// process is what a pod runs.
type process struct {
	stop  func()
	ready func() bool
}

func newFleet(t *testing.T, nodes int, options ...cluster.Option) *fleet {
	t.Helper()
	f := &fleet{T: t, cluster: cluster.ForTest(t, options...),
		watched: []*gate.Gate{gate.DefaultGate()}, nodes: map[string]*node{}, running: map[types.UID]*process{}, dead: map[string]bool{}}
	var err error
	if f.admin, err = kubernetes.NewForConfig(f.cluster.Admin); err != nil {
		t.Fatal(err)
	}
	if f.kubeconfig, err = f.cluster.Kubeconfig(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	f.startComponent("kube-controller-manager", "--use-service-account-credentials",
		"--controllers=deployment-controller,replicaset-controller,daemonset-controller,namespace-controller,garbage-collector-controller",
		"--concurrent-gc-syncs=4")
	f.startComponent("kube-scheduler")
	t.Cleanup(f.wg.Wait)
	for i := range nodes {
		f.addNode(fmt.Sprintf("node-%d", i))
	}
	f.watch()
	return f
}

// startComponent starts a component of the control plane, as itself.
func (f *fleet) startComponent(name string, args ...string) {
	f.Helper()
	identity, err := f.cluster.User("system:" + name)
	if err != nil {
		f.Fatal(err)
	}
	kubeconfig := filepath.Join(f.TempDir(), name+".kubeconfig")
	if err := cluster.WriteKubeconfig(identity, kubeconfig); err != nil {
		f.Fatal(err)
	}
	command := exec.Command(filepath.Join(os.Getenv(cluster.AssetsVariable), name),
		append([]string{"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0"}, args...)...)
	var log strings.Builder
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if f.Failed() {
			text := log.String()
			f.Logf("%s:\n%s", name, text[max(0, len(text)-3000):])
		}
	})
}

// addNode registers a node in a boot, with the plugin chained.
func (f *fleet) addNode(name string) {
	f.Helper()
	n := &node{name: name, dir: f.TempDir()}
	f.chainOn(n)
	created, err := f.admin.CoreV1().Nodes().Create(f.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux", corev1.LabelHostname: name},
		Annotations: map[string]string{corev1.ObjectTTLAnnotationKey: "0"},
	}}, metav1.CreateOptions{})
	if err != nil {
		f.Fatal(err)
	}
	created.Status.NodeInfo = corev1.NodeSystemInfo{BootID: boot, OperatingSystem: "linux", ContainerRuntimeVersion: "containerd://2.0.0"}
	created.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	created.Status.Capacity = created.Status.Allocatable
	created.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := f.admin.CoreV1().Nodes().UpdateStatus(f.Context(), created, metav1.UpdateOptions{}); err != nil {
		f.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name] = n
}

// chainOn has the plugin chained on a node, as its installer does.
func (f *fleet) chainOn(n *node) {
	f.Helper()
	for file, text := range map[string]string{
		gate.DefaultNetDir + "/10-base.conflist": chained, gate.DefaultNetDir + "/." + pluginType + "-entry": `{"type": "` + pluginType + `"}`,
		gate.DefaultBinDir + "/" + pluginType: "#!/bin/sh\n",
	} {
		path := filepath.Join(n.dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			f.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			f.Fatal(err)
		}
	}
}

// chain has the plugin chained on every node.
func (f *fleet) chain() {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		f.chainOn(n)
	}
}

// setDead has a node's machine off, or on again, and the Node say so, as the control
// plane has it.
func (f *fleet) setDead(name string, dead bool) {
	f.Helper()
	taint, off := corev1.TaintNodeUnreachable+":NoExecute", ""
	if !dead {
		off = "-"
	}
	f.kubectl("taint", "node", name, taint+off)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead[name] = dead
	for _, object := range f.pods.List() {
		if pod, ok := object.(*corev1.Pod); ok && dead && pod.Spec.NodeName == name && f.running[pod.UID] != nil {
			f.running[pod.UID].stop()
		}
	}
}

// watch follows Nodes and pods until the test ends.
func (f *fleet) watch() {
	f.Helper()
	factory := informers.NewSharedInformerFactory(f.admin, 0)
	nodes, pods := factory.Core().V1().Nodes().Informer(), factory.Core().V1().Pods().Informer()
	saw := func(object any) {
		if seen, ok := object.(*corev1.Node); ok {
			f.saw(seen)
		}
	}
	if _, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: saw, UpdateFunc: func(_, object any) { saw(object) }}); err != nil {
		f.Fatal(err)
	}
	f.pods = pods.GetStore()
	ctx, cancel := context.WithCancel(f.Context())
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced, pods.HasSynced) {
		f.Fatal("the watches did not start")
	}
	f.wg.Go(func() { f.runPods(ctx) })
	f.Cleanup(func() {
		cancel()
		factory.Shutdown()
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range f.running {
			p.stop()
		}
	})
}

// saw counts a flap where a Node that was open is closed.
func (f *fleet) saw(seen *corev1.Node) {
	f.mu.Lock()
	n, watched := f.nodes[seen.Name], f.watched
	f.mu.Unlock()
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	open := !slices.ContainsFunc(watched, func(g *gate.Gate) bool { return g.Armed(seen) })
	if n.open && !open {
		n.flaps++
	}
	n.open = open
}

// alsoWatch counts the flaps of a further gate.
func (f *fleet) alsoWatch(g *gate.Gate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watched = append(f.watched, g)
}

// expectNoFlaps: no node was closed since it was first open.
func (f *fleet) expectNoFlaps() {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.nodes {
		n.mu.Lock()
		if n.flaps > 0 {
			f.Errorf("node %s was closed %d times", name, n.flaps)
		}
		n.mu.Unlock()
	}
}

// runPods does what the kubelets would.
func (f *fleet) runPods(ctx context.Context) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		group, groupCtx := errgroup.WithContext(ctx)
		group.SetLimit(8)
		for _, object := range f.pods.List() {
			if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				group.Go(func() error { f.runPod(groupCtx, pod); return nil })
			}
		}
		_ = group.Wait()
	}
}

func (f *fleet) runPod(ctx context.Context, pod *corev1.Pod) {
	f.mu.Lock()
	p, started := f.running[pod.UID]
	dead := f.dead[pod.Spec.NodeName]
	f.mu.Unlock()
	if dead {
		return
	}
	if pod.DeletionTimestamp != nil {
		if started {
			p.stop()
			f.mu.Lock()
			delete(f.running, pod.UID)
			f.mu.Unlock()
		}
		err := f.admin.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
		f.check(ctx, err)
		return
	}
	if !started {
		var err error
		if p, err = f.start(ctx, pod); err != nil {
			if ctx.Err() == nil {
				f.Logf("pod %s: %v", pod.Name, err) // it is tried again
			}
			return
		}
		f.mu.Lock()
		f.running[pod.UID] = p
		f.mu.Unlock()
	}
	f.report(ctx, pod, p.ready())
}

// check reports an error that says more than that somebody was faster, or that the
// API server is away.
func (f *fleet) check(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil && apierrors.IsForbidden(err) {
		f.Errorf("a kubelet: %v", err)
	}
}

// start runs what the pod says.
func (f *fleet) start(ctx context.Context, pod *corev1.Pod) (*process, error) {
	switch {
	case pod.Labels[gate.AgentLabel] == gate.ControllerAccount:
		return f.startGuard(ctx)
	case pod.Labels[gate.AgentLabel] != gate.AgentLabelValue:
		return &process{stop: func() {}, ready: func() bool { return true }}, nil
	case len(pod.Spec.InitContainers) > 0 && pod.Spec.InitContainers[0].Args[0] == "unchain":
		return f.unchain(ctx, pod)
	}
	return f.startAgent(ctx, pod)
}

// unchain runs the pod's init containers on its node's files.
func (f *fleet) unchain(ctx context.Context, pod *corev1.Pod) (*process, error) {
	f.mu.Lock()
	dir := f.nodes[pod.Spec.NodeName].dir
	f.mu.Unlock()
	for _, container := range pod.Spec.InitContainers {
		args := slices.Clone(container.Args)
		for i := range args {
			args[i] = strings.Replace(args[i], "=/", "="+dir+"/", 1)
		}
		if said, err := exec.CommandContext(ctx, filepath.Join(programs, "nodegate-agent"), args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w\n%s", args, err, said)
		}
	}
	return &process{stop: func() {}, ready: func() bool { return true }}, nil
}

func (f *fleet) startAgent(ctx context.Context, pod *corev1.Pod) (*process, error) {
	answer, err := f.admin.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	identity := rest.AnonymousClientConfig(f.cluster.Admin)
	identity.BearerToken = answer.Status.Token
	_, cfg, err := f.configured(ctx)
	if err != nil {
		return nil, err
	}
	var gates []agent.Gate
	for _, g := range cfg.AgentGates() {
		gates = append(gates, agent.Gate{Gate: g, Probes: []agent.Probe{{
			Name: "check", Check: agent.CheckFunc(func(context.Context) error { return nil }), Dwell: time.Second, Timeout: time.Second,
		}}})
	}
	a, err := agent.New(agent.Options{Config: identity, NodeName: pod.Spec.NodeName, PodUID: pod.UID, BootID: boot, Gates: gates})
	if err != nil {
		return nil, err
	}
	stop := f.inBackground(a.Start)
	return &process{stop: stop, ready: func() bool {
		answer := httptest.NewRecorder()
		a.ServeReady(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return answer.Code == http.StatusOK
	}}, nil
}

// inBackground runs something until it is stopped.
func (f *fleet) inBackground(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run(ctx)
	}()
	return func() { cancel(); <-done }
}

// configured is the configuration in the cluster, as a mount shows it.
func (f *fleet) configured(ctx context.Context) (*corev1.ConfigMap, *gate.Configuration, error) {
	object, err := f.admin.CoreV1().ConfigMaps(gate.Namespace).Get(ctx, gate.ConfigMapName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	cfg, err := gate.ParseConfiguration([]byte(object.Data[gate.ConfigMapKey]))
	return object, cfg, err
}

// startGuard runs one by the configuration in the cluster.
func (f *fleet) startGuard(ctx context.Context) (*process, error) {
	object, cfg, err := f.configured(ctx)
	if err != nil {
		return nil, err
	}
	var current atomic.Pointer[gate.Configuration]
	current.Store(cfg)
	installedAt, err := time.Parse(gate.TimeLayout, object.Annotations[gate.InstalledAtAnnotation])
	if err != nil {
		return nil, err
	}
	changed := make(chan struct{}, 1)
	mgr, _, err := guardmanager.New(f.cluster.Admin, current.Load, changed, installedAt)
	if err != nil {
		return nil, err
	}
	stopGuard := f.inBackground(mgr.Start)
	stopMount := f.inBackground(func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(100 * time.Millisecond):
			}
			_, cfg, err := f.configured(ctx)
			if err == nil && !reflect.DeepEqual(cfg, current.Load()) {
				current.Store(cfg)
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		}
	})
	return &process{stop: func() { stopMount(); stopGuard() }, ready: func() bool { return true }}, nil
}

// report posts the pod's status, if it is another.
func (f *fleet) report(ctx context.Context, pod *corev1.Pod, ready bool) {
	want := corev1.ConditionFalse
	if ready {
		want = corev1.ConditionTrue
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == want && pod.Status.Phase == corev1.PodRunning {
			return
		}
	}
	pod = pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = nil
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	}
	for _, kind := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: want, LastTransitionTime: metav1.Now()})
	}
	_, err := f.admin.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	f.check(ctx, err)
}

// command is `kubectl nodegate` as an administrator.
func (f *fleet) command(args ...string) *exec.Cmd {
	return exec.CommandContext(f.Context(), filepath.Join(programs, "kubectl-nodegate"), append(args, "--kubeconfig="+f.kubeconfig, "--cache-dir="+f.TempDir())...)
}

// nodegate runs it and returns what it wrote.
func (f *fleet) nodegate(args ...string) (out string, code int) {
	f.Helper()
	command := f.command(args...)
	began := time.Now()
	said, err := command.CombinedOutput()
	if command.ProcessState == nil {
		f.Fatal(err)
	}
	f.Logf("kubectl nodegate %s: %s\n%s", strings.Join(args, " "), time.Since(began).Round(time.Millisecond), said)
	return string(said), command.ProcessState.ExitCode()
}

// interrupt runs it and kills it when something is seen.
func (f *fleet) interrupt(what string, seen func(context.Context) (bool, error), args ...string) {
	f.Helper()
	command := f.command(args...)
	var said strings.Builder
	command.Stdout, command.Stderr = &said, &said
	if err := command.Start(); err != nil {
		f.Fatal(err)
	}
	err := cluster.Await(f.Context(), seen)
	_ = command.Process.Kill()
	_ = command.Wait()
	f.Logf("kubectl nodegate %s, killed when %s:\n%s", strings.Join(args, " "), what, said.String())
	if err != nil {
		f.Fatalf("waiting until %s: %v", what, err)
	}
}

// kubectl is what people do by hand.
func (f *fleet) kubectl(args ...string) {
	f.Helper()
	said, err := exec.CommandContext(f.Context(), filepath.Join(os.Getenv(cluster.AssetsVariable), "kubectl"), append(args, "--kubeconfig="+f.kubeconfig)...).CombinedOutput()
	if err != nil {
		f.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, said)
	}
}

// done runs it where it must succeed.
func (f *fleet) done(args ...string) string {
	f.Helper()
	out, code := f.nodegate(args...)
	if code != 0 {
		f.Fatalf("kubectl nodegate %s: exit code %d", strings.Join(args, " "), code)
	}
	return out
}

// await waits until a condition holds of every Node.
func (f *fleet) await(what string, condition func(*corev1.Node) bool) {
	f.Helper()
	err := cluster.Await(f.Context(), func(ctx context.Context) (bool, error) {
		nodes, err := f.admin.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range nodes.Items {
			if !condition(&nodes.Items[i]) {
				return false, fmt.Errorf("node %s is not", nodes.Items[i].Name)
			}
		}
		return true, nil
	})
	if err != nil {
		f.Fatalf("waiting for every node to be %s: %v", what, err)
	}
}
