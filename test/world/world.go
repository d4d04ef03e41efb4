//go:build unix

package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/kubelet"
)

const (
	// patience is how long anything awaited may take on a machine that is busy.
	patience = time.Minute

	// leaseInterval renews a kubelet's Lease well within a short grace.
	leaseInterval = time.Second
	// statusInterval is that of a kubelet on whose node something keeps changing.
	statusInterval = 10 * time.Second

	logFolder        = "log"
	nodeFolder       = "nodes"
	kubeconfigFolder = "kubeconfig"
	webhookFolder    = "webhook"

	localhost = "127.0.0.1"
)

// Mutation is the form in which admission arms.
type Mutation string

// The forms of which a cluster installs one.
const (
	Policy  Mutation = "policy"
	Webhook Mutation = "webhook"
)

// Options say what world to make.
type Options struct {
	// Dir is an existing folder for all files. Who gave it removes it.
	Dir string
	// Programs is the folder of nodegate's own programs; see [Build].
	Programs string
	// Config is the text of the configuration, of one gate. Default: one that looks
	// at a socket and at a chained plugin.
	Config string
	// Mutation defaults to [Policy].
	Mutation Mutation
	// Grace is how long a node may be silent until the control plane takes it for
	// unreachable. Default: 5s.
	Grace time.Duration
	// Progress is told what is being done. Optional.
	Progress func(string)
}

// World is a running cluster with the gate installed.
type World struct {
	// Admin is a member of system:masters.
	Admin kubernetes.Interface
	// Gate is the one that is installed.
	Gate *gate.Gate

	options Options
	cfg     *gate.Configuration
	cluster *cluster.Cluster
	// ctx is the life of watches and kubelets.
	ctx    context.Context
	cancel context.CancelFunc

	controlPlane []*program
	controller   *controller

	mu    sync.Mutex
	nodes []*Node
}

// Start makes a world. It lives until Stop, or until the context ends.
func Start(ctx context.Context, o Options) (*World, error) {
	if o.Mutation == "" {
		o.Mutation = Policy
	}
	if o.Grace <= 0 {
		o.Grace = 5 * time.Second
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Config == "" {
		o.Config = defaultConfig
	}
	cfg, err := gate.ParseConfiguration([]byte(o.Config))
	if err != nil {
		return nil, err
	}
	w := &World{options: o, cfg: cfg, Gate: &cfg.Gates[0]}
	w.ctx, w.cancel = context.WithCancel(ctx)
	if err := w.begin(ctx); err != nil {
		return nil, errors.Join(err, w.Stop())
	}
	return w, nil
}

func (w *World) begin(ctx context.Context) error {
	for _, folder := range []string{logFolder, nodeFolder, kubeconfigFolder, webhookFolder} {
		if err := os.MkdirAll(filepath.Join(w.options.Dir, folder), 0o700); err != nil {
			return fmt.Errorf("making folder: %w", err)
		}
	}
	for _, step := range []struct {
		progress string
		do       func(context.Context) error
	}{
		{"starting etcd and kube-apiserver", w.startCluster},
		{"installing the gate", w.install},
		{"starting nodegate-controller", w.startController},
		{"waiting for admission to be in force", w.installAdmission},
		{"starting kube-scheduler and kube-controller-manager", w.startControlPlane},
		{"registering a node that is exempt", w.addControlPlaneNode},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		w.options.Progress(step.progress)
		if err := step.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends everything. Files stay.
func (w *World) Stop() error {
	w.cancel()
	w.mu.Lock()
	nodes := w.nodes
	w.mu.Unlock()
	for _, node := range nodes {
		node.Crash()
	}
	w.controller.stop()
	for _, p := range w.controlPlane {
		p.stop()
	}
	if w.cluster == nil {
		return nil
	}
	return w.cluster.Stop()
}

func (w *World) startCluster(context.Context) error {
	c, err := cluster.Start()
	if err != nil {
		return err
	}
	w.cluster = c
	if w.Admin, err = kubernetes.NewForConfig(c.Admin); err != nil {
		return fmt.Errorf("creating client: %w", err)
	}
	return nil
}

// startControlPlane starts those controllers that a node needs, with the
// identities and the accounts that they have in production.
func (w *World) startControlPlane(context.Context) error {
	scheduler, err := w.component("kube-scheduler")
	if err != nil {
		return err
	}
	w.controlPlane = append(w.controlPlane, scheduler)
	manager, err := w.component("kube-controller-manager",
		"--use-service-account-credentials",
		"--controllers=node-lifecycle-controller,taint-eviction-controller,ttl-controller,daemonset-controller",
		"--node-monitor-period=500ms",
		"--node-monitor-grace-period="+w.options.Grace.String())
	if err != nil {
		return err
	}
	w.controlPlane = append(w.controlPlane, manager)
	return nil
}

// component starts a component of the control plane, as itself.
func (w *World) component(name string, args ...string) (*program, error) {
	identity, err := w.cluster.User("system:" + name)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := w.kubeconfig(name, identity)
	if err != nil {
		return nil, err
	}
	args = append([]string{"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0"}, args...)
	return w.start(name, asset(name), args...)
}

// asset is the path of a program of the control plane.
func asset(name string) string { return filepath.Join(os.Getenv(cluster.AssetsVariable), name) }

// Kubectl runs the real kubectl as an administrator and returns what it says.
func (w *World) Kubectl(ctx context.Context, args ...string) (string, error) {
	kubeconfig, err := w.cluster.Kubeconfig(filepath.Join(w.options.Dir, kubeconfigFolder))
	if err != nil {
		return "", err
	}
	return output(ctx, asset("kubectl"), append([]string{"--kubeconfig=" + kubeconfig}, args...)...)
}

// kubeconfig writes a file for the identity and returns its path.
func (w *World) kubeconfig(name string, identity *rest.Config) (string, error) {
	path := filepath.Join(w.options.Dir, kubeconfigFolder, name+".kubeconfig")
	if err := cluster.WriteKubeconfig(identity, path); err != nil {
		return "", fmt.Errorf("as %s: %w", name, err)
	}
	return path, nil
}

// addControlPlaneNode keeps a second node alive: where every node of a cluster is
// silent, its control plane believes that the fault is its own, and taints none.
// Like many a control plane's, it is exempt from the gate and takes no workload.
func (w *World) addControlPlaneNode(context.Context) error {
	n, err := w.newNode(kubelet.Options{
		Name:   "control-plane",
		Labels: map[string]string{gate.ExemptLabel: "true"},
		Taints: []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}},
	})
	if err != nil {
		return err
	}
	return n.Boot()
}

// Logs returns the last lines of every program's log, for a person who looks for
// what went wrong.
func (w *World) Logs() map[string]string {
	logs := map[string]string{}
	files, err := filepath.Glob(filepath.Join(w.options.Dir, logFolder, "*.log"))
	if err != nil {
		return logs
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil {
			logs[filepath.Base(file)] = tail(string(text))
		}
	}
	return logs
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(localhost, "0"))
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}
