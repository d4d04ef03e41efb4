//go:build unix

package world

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/kubelet"
)

// mainPlugin is the network's own.
const mainPlugin = `{"type": "bridge", "bridge": "cni0"}`

// The files of a node, below its folder.
const (
	bootIDFile  = "boot_id"
	netFolder   = "net.d"
	binFolder   = "bin"
	configFile  = "config.yaml"
	ownConflist = "10-base.conflist"
	foreignConf = "05-other.conf"
)

// Node is a machine: a kubelet, the gate's agent, and what that agent tests, a
// gated agent's socket and the CNI configuration.
type Node struct {
	Name    string
	History *History
	// BootID is the last boot's.
	BootID string

	world   *World
	dir     string
	kubelet *kubelet.Kubelet
	// checks are the gate's, as they look into this node.
	checks []gate.Check
	// plugin is the type of the chained plugin, empty where no check looks for one.
	plugin string
	// endpoints are what the gated agent serves, by the name of the check.
	endpoints map[string]net.Listener
	ports     map[string]int32

	mu     sync.Mutex
	agent  *program
	pod    types.UID
	health string
	// ready is the readiness probe of all pods but the agent's.
	ready func(*corev1.Pod) bool
}

// NewNode returns a machine that is switched off, and whose Node object does not
// exist.
func (w *World) NewNode(name string) (*Node, error) { return w.newNode(kubelet.Options{Name: name}) }

func (w *World) newNode(o kubelet.Options) (*Node, error) {
	n := &Node{
		Name: o.Name, world: w, dir: filepath.Join(w.options.Dir, nodeFolder, o.Name),
		endpoints: map[string]net.Listener{}, ports: map[string]int32{}, ready: func(*corev1.Pod) bool { return true },
	}
	if err := n.makeFiles(); err != nil {
		return nil, err
	}
	var err error
	if n.History, err = follow(w.ctx, w.Admin, n.Name); err != nil {
		return nil, err
	}
	if o.Config, err = w.cluster.Kubelet(n.Name); err != nil {
		return nil, err
	}
	o.LeaseInterval, o.StatusInterval, o.Ready = leaseInterval, statusInterval, n.podReady
	if n.kubelet, err = kubelet.New(o); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nodes = append(w.nodes, n)
	return n, nil
}

func (n *Node) path(elements ...string) string {
	return filepath.Join(slices.Concat([]string{n.dir}, elements)...)
}

// makeFiles lays out the node's folder: a network without the gated plugin, the
// plugin's binary, and the agent's configuration.
func (n *Node) makeFiles() error {
	for _, folder := range []string{netFolder, binFolder} {
		if err := os.MkdirAll(n.path(folder), 0o700); err != nil {
			return fmt.Errorf("making folder: %w", err)
		}
	}
	if err := n.Configure(func(*gate.Check) {}); err != nil {
		return err
	}
	if n.plugin != "" {
		if err := os.WriteFile(n.path(binFolder, n.plugin), []byte("#!/bin/sh\nexit 0\n"), 0o700); err != nil {
			return err
		}
	}
	return n.writeConflist(mainPlugin)
}

// writeConflist replaces the CNI configuration in one step, as installers do.
func (n *Node) writeConflist(plugins string) error {
	return n.replace(filepath.Join(netFolder, ownConflist), baseList(plugins))
}

func baseList(plugins string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "base", "plugins": [%s]}`, plugins)
}

// replace writes a file of the node in one step.
func (n *Node) replace(name, content string) error {
	temporary := n.path("new")
	if err := os.WriteFile(temporary, []byte(content), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, n.path(name))
}

// Chain puts the plugin behind the main plugin.
func (n *Node) Chain() error {
	return n.writeConflist(fmt.Sprintf("%s, {\"type\": %q}", mainPlugin, n.plugin))
}

// Strip is another CNI that brings its own configuration: a single plugin, in
// front of all others. Nothing can be chained in it, so that no agent mends it.
func (n *Node) Strip() error {
	return n.replace(filepath.Join(netFolder, foreignConf), `{"cniVersion": "1.0.0", "name": "other", "type": "ptp"}`)
}

// Unstrip removes the other CNI's file.
func (n *Node) Unstrip() error { return os.Remove(n.path(netFolder, foreignConf)) }

// Boot starts the kubelet, in a new boot, and nothing else.
func (n *Node) Boot() error {
	n.BootID = string(uuid.NewUUID())
	if err := os.WriteFile(n.path(bootIDFile), []byte(n.BootID+"\n"), 0o600); err != nil {
		return fmt.Errorf("writing boot id: %w", err)
	}
	return n.kubelet.Start(n.world.ctx, n.BootID)
}

// Crash ends whatever runs on the node, without a word to anybody.
func (n *Node) Crash() {
	n.kubelet.Stop()
	n.KillAgent()
	n.StopServing()
}

// StartAgent runs the gate's agent as the pod that the DaemonSet made for this
// node, with the token that the kubelet asks for on the pod's behalf.
func (n *Node) StartAgent(ctx context.Context) error {
	pod, err := n.agentPod(ctx)
	if err != nil {
		return err
	}
	token, err := n.kubelet.Token(ctx, pod)
	if err != nil {
		return err
	}
	identity := rest.AnonymousClientConfig(n.world.cluster.Admin)
	identity.BearerToken = token
	name := gate.AgentAccount + "-" + n.Name
	kubeconfig, err := n.world.kubeconfig(name, identity)
	if err != nil {
		return err
	}
	health, err := freeAddress()
	if err != nil {
		return err
	}
	agent, err := n.world.start(name, filepath.Join(n.world.options.Programs, "nodegate-agent"),
		"--config="+n.path(configFile), "--kubeconfig="+kubeconfig, "--node-name="+n.Name, "--pod-uid="+string(pod.UID),
		"--boot-id-path="+n.path(bootIDFile), "--health-address="+health, "--metrics-address=0")
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.agent, n.pod, n.health = agent, pod.UID, health
	return nil
}

// AwaitAgent waits for the agent itself to say that the node serves.
func (n *Node) AwaitAgent(ctx context.Context) error {
	n.mu.Lock()
	health := n.health
	n.mu.Unlock()
	if err := cluster.Await(ctx, func(ctx context.Context) (bool, error) { return ready(ctx, health) }); err != nil {
		return fmt.Errorf("waiting for the agent on node %q to be ready: %w", n.Name, err)
	}
	return nil
}

// AwaitAgentReady waits for the agent's pod to be Ready, in the eyes of the cluster.
func (n *Node) AwaitAgentReady(ctx context.Context) error {
	err := cluster.Await(ctx, func(ctx context.Context) (bool, error) {
		pod, err := n.agentPod(ctx)
		if err != nil {
			return false, err
		}
		return placement.Ready(pod), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the agent's pod on node %q to be Ready: %w", n.Name, err)
	}
	return nil
}

// AwaitAgentReplaced waits for the node to have another agent pod than the one that
// the agent was last run as.
func (n *Node) AwaitAgentReplaced(ctx context.Context) error {
	n.mu.Lock()
	former := n.pod
	n.mu.Unlock()
	err := cluster.Await(ctx, func(ctx context.Context) (bool, error) {
		pod, err := n.agentPod(ctx)
		return err == nil && pod.UID != former, err
	})
	if err != nil {
		return fmt.Errorf("waiting for another agent pod on node %q: %w", n.Name, err)
	}
	return nil
}

// StopAgent ends the gate's agent as the end of its pod does.
func (n *Node) StopAgent() { n.endAgent((*program).stop) }

// KillAgent ends it as a crash does.
func (n *Node) KillAgent() { n.endAgent((*program).kill) }

func (n *Node) endAgent(end func(*program)) {
	n.mu.Lock()
	agent := n.agent
	n.agent, n.health = nil, ""
	n.mu.Unlock()
	end(agent)
}

// agentPod waits for the agent's pod to be bound to the node.
func (n *Node) agentPod(ctx context.Context) (*corev1.Pod, error) {
	var found *corev1.Pod
	err := cluster.Await(ctx, func(ctx context.Context) (bool, error) {
		pods, err := n.world.Admin.CoreV1().Pods(gate.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: labels.SelectorFromSet(n.world.Gate.Agent.PodLabels).String(),
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.Name).String(),
		})
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil })
		if i >= 0 {
			found = &pods.Items[i]
		}
		return i >= 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for an agent pod on node %q: %w", n.Name, err)
	}
	return found, nil
}

// SetReadiness has a readiness probe of all pods but the gate's agent. At first, all
// are ready.
func (n *Node) SetReadiness(ready func(*corev1.Pod) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready = ready
}

// podReady is the readiness probe of the node's pods. The agent's asks the agent;
// all others are ready.
func (n *Node) podReady(ctx context.Context, pod *corev1.Pod) bool {
	n.mu.Lock()
	health, others := n.health, n.ready
	n.mu.Unlock()
	if !labels.SelectorFromSet(n.world.Gate.Agent.PodLabels).Matches(labels.Set(pod.Labels)) {
		return others(pod)
	}
	if health == "" {
		return false
	}
	ok, err := ready(ctx, health)
	return ok && err == nil
}
