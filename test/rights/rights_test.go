package rights

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/hold"
	"github.com/nodegate/nodegate/internal/netconf"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/world"
)

const (
	nodeName = "node-a"
	boot     = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
)

// TestRights_AreThoseThatAreUsed runs two controllers and an agent, as accounts
// with the rights that are rendered, in a cluster that gives them reason for
// everything: there is no request that is refused, or allowed by anything else,
// and no right without a request.
//
// The API server streams no lists, as one of Kubernetes before 1.34: the programs'
// watches then list first.
func TestRights_AreThoseThatAreUsed(t *testing.T) {
	ctrl.SetLogger(logr.Discard()) // envtest's
	log, flags := newAuditLog(t)
	c := cluster.ForTest(t, append(flags, cluster.WithFlag("feature-gates", "WatchList=false"))...)
	p := prepare(t, c)
	rights := manifests.Rights(p.cfg, manifests.ByWebhook)
	p.install()
	p.run()

	p.emptySecret()
	stop := p.stir()
	var unused []manifests.Right
	err := cluster.Await(t.Context(), func(context.Context) (bool, error) {
		requests := log.requests(t)
		unused = slices.DeleteFunc(slices.Clone(rights), func(right manifests.Right) bool {
			return slices.ContainsFunc(requests, func(r request) bool { return r.by(right) && !r.forbidden() })
		})
		return len(unused) == 0, nil
	})
	stop()
	if err != nil {
		for _, right := range unused {
			t.Errorf("nobody used the right %+v", right)
		}
	}
	seen := map[string]bool{}
	for _, r := range log.requests(t) {
		granted := slices.ContainsFunc(rights, r.by)
		if (r.forbidden() || !granted) && !seen[r.String()] {
			seen[r.String()] = true
			t.Errorf("%s: forbidden: %t, granted: %t", r, r.forbidden(), granted)
		}
	}
	if t.Failed() {
		p.showLogs()
	}
}

// programs are those under test, and what they run on.
type programs struct {
	*testing.T
	cluster *cluster.Cluster
	admin   kubernetes.Interface
	dir     string
	config  string
	cfg     *gate.Configuration
	wire    string
}

func prepare(t *testing.T, c *cluster.Cluster) *programs {
	t.Helper()
	dir, err := os.MkdirTemp("", "ng") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &programs{T: t, cluster: c, dir: dir, wire: slowWire(t, c.Admin.Host)}
	if p.admin, err = kubernetes.NewForConfig(c.Admin); err != nil {
		t.Fatal(err)
	}
	p.config = fmt.Sprintf(`apiVersion: %s
kind: %s
cni: {socket: %s}
gates:
- {name: agent, taint: {key: %s}, checks: [{socket: {path: %s}}]}
- {name: other, taint: {key: example.com/other}, checks: [{pod: {namespace: default, selector: {matchLabels: {app: other}}}}]}
`, gate.APIVersion, gate.Kind, p.podSocket(), gate.DefaultTaintKey, filepath.Join(dir, "socket"))
	if p.cfg, err = gate.ParseConfiguration([]byte(p.config)); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	for name, content := range map[string]string{"config.yaml": p.config, "boot_id": boot + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := world.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *programs) podSocket() string { return filepath.Join(p.dir, "run", "cni.sock") }

// install applies what is rendered. The webhook is registered and called for
// nothing: its Service leads nowhere.
func (p *programs) install() {
	p.Helper()
	uncalled := *p.cfg
	uncalled.Mode = gate.ModeObserve
	registration, err := manifests.Webhook(&uncalled, nil)
	if err != nil {
		p.Fatal(err)
	}
	objects, err := manifests.Workloads(manifests.Options{Config: p.config, Mutation: manifests.ByWebhook})
	if err != nil {
		p.Fatal(err)
	}
	for _, object := range objects {
		if object.GetKind() == "ConfigMap" {
			object.SetAnnotations(map[string]string{gate.InstalledAtAnnotation: "2026-01-01T00:00:00Z"})
		}
	}
	if err := p.cluster.Apply(p.Context(), append(objects, registration)); err != nil {
		p.Fatal(err)
	}
	node, err := p.admin.CoreV1().Nodes().Create(p.Context(), bareNode(nodeName), metav1.CreateOptions{})
	if err != nil {
		p.Fatal(err)
	}
	node.Status.NodeInfo.BootID = boot
	if _, err := p.admin.CoreV1().Nodes().UpdateStatus(p.Context(), node, metav1.UpdateOptions{}); err != nil {
		p.Fatal(err)
	}
}

func bareNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
}

// run starts the programs.
func (p *programs) run() {
	p.Helper()
	controller, err := p.cluster.AccountToken(p.Context(), gate.Namespace, gate.ControllerAccount)
	if err != nil {
		p.Fatal(err)
	}
	agent, err := p.cluster.PodToken(p.Context(), gate.Namespace, gate.AgentAccount, nodeName)
	if err != nil {
		p.Fatal(err)
	}
	for _, name := range []string{"controller-1", "controller-2"} {
		p.start(name, "nodegate-controller", controller, "--webhook", "--webhook-address=127.0.0.1:0")
	}
	p.start("agent", "nodegate-agent", agent, "--node-name="+nodeName, "--boot-id-path="+filepath.Join(p.dir, "boot_id"))
}

func (p *programs) start(name, program string, identity *rest.Config, args ...string) {
	p.Helper()
	identity.Host = p.wire
	kubeconfig := filepath.Join(p.dir, name+".kubeconfig")
	if err := cluster.WriteKubeconfig(identity, kubeconfig); err != nil {
		p.Fatal(err)
	}
	log, err := os.Create(filepath.Join(p.dir, name+".log"))
	if err != nil {
		p.Fatal(err)
	}
	command := exec.CommandContext(p.Context(), filepath.Join(p.dir, program), append([]string{
		"--config=" + filepath.Join(p.dir, "config.yaml"), "--kubeconfig=" + kubeconfig, "--health-address=0", "--metrics-address=0",
	}, args...)...)
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = log.Close()
	})
}

// emptySecret waits for the certificate and empties it, so that it is renewed.
func (p *programs) emptySecret() {
	p.Helper()
	err := cluster.Await(p.Context(), func(ctx context.Context) (bool, error) {
		_, err := p.admin.CoreV1().Secrets(gate.Namespace).Patch(ctx, gate.WebhookSecret, types.MergePatchType,
			[]byte(`{"data": {"tls.crt": ""}}`), metav1.PatchOptions{})
		return err == nil, err
	})
	if err != nil {
		p.Errorf("waiting for the Secret: %v", err)
	}
}

func (p *programs) showLogs() {
	logs, _ := filepath.Glob(filepath.Join(p.dir, "*.log"))
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		p.Logf("%s:\n%s", filepath.Base(log), text[max(0, len(text)-2000):])
	}
}

// stir gives reason for what is rarely done, until it is stopped: writes come
// between what a program reads and what it writes. Nodes that must be armed are
// born and written at once; the agent's Node is closed again and again, each time
// with the gate's taint at another place of the list; the DaemonSet comes and goes;
// a pod waits.
func (p *programs) stir() (stop func()) {
	ctx, cancel := context.WithCancel(p.Context())
	var parts sync.WaitGroup
	repeat := func(do func(i int) error) {
		parts.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if err := do(i); err != nil && ctx.Err() == nil {
					p.Errorf("stirring: %v", err)
				}
			}
		})
	}
	repeat(func(i int) error { return p.newborn(ctx, fmt.Sprintf("newborn-%d", i)) })
	repeat(func(i int) error {
		taints := p.cfg.Gates[0].WithTaint(foreignTaints(i % 10))
		return p.patch(ctx, nodeName, map[string]any{"spec": map[string]any{"taints": taints}})
	})
	repeat(func(int) error { return p.replaceDaemonSet(ctx) })
	repeat(func(int) error {
		settings := netconf.Settings{Socket: p.podSocket(), Timeout: time.Second}
		_ = hold.Wait(ctx, settings, netconf.Pod{Namespace: "default", Name: "waiting"}, time.Now()) // in vain
		pause(ctx)
		return nil
	})
	return func() {
		cancel()
		parts.Wait()
	}
}

// replaceDaemonSet lets the guard see that there is none, and that there is one.
func (p *programs) replaceDaemonSet(ctx context.Context) error {
	sets := p.admin.AppsV1().DaemonSets(gate.Namespace)
	set, err := sets.Get(ctx, gate.AgentAccount, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := sets.Delete(ctx, set.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	pause(ctx)
	set.ObjectMeta = metav1.ObjectMeta{Name: set.Name}
	_, err = sets.Create(ctx, set, metav1.CreateOptions{})
	pause(ctx)
	return err
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

func foreignTaints(n int) []corev1.Taint {
	var taints []corev1.Taint
	for i := range n {
		taints = append(taints, corev1.Taint{Key: fmt.Sprintf("example.com/foreign-%d", i), Effect: corev1.TaintEffectPreferNoSchedule})
	}
	return taints
}

// newborn creates a Node and writes it for a while.
func (p *programs) newborn(ctx context.Context, name string) error {
	nodes := p.admin.CoreV1().Nodes()
	if _, err := nodes.Create(ctx, bareNode(name), metav1.CreateOptions{}); err != nil {
		return err
	}
	deadline := time.Now().Add(time.Second)
	for i := 0; time.Now().Before(deadline); i++ {
		if err := p.patch(ctx, name, map[string]any{"metadata": map[string]any{"labels": map[string]any{"turn": fmt.Sprint(i)}}}); err != nil {
			return err
		}
	}
	return nodes.Delete(ctx, name, metav1.DeleteOptions{})
}

func (p *programs) patch(ctx context.Context, node string, patch map[string]any) error {
	data, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = p.admin.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, data, metav1.PatchOptions{})
	return err
}
