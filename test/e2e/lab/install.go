//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

// configuration is that of a mesh whose plugin is chained.
const configuration = `apiVersion: nodegate.io/v1alpha1
kind: Configuration
gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
  checks:
  - socket: {path: /run/mesh/cni.sock}
  - conflist: {pluginType: mesh-cni}
`

// holding is what a configuration has in addition for nodegate-cni to hold back pods
// that are bound.
const holding = `  - {name: hold, conflist: {pluginType: nodegate-cni}}
cni: {}
`

// Install installs nodegate as its users do, or changes what is installed, and
// returns when controller and agents are ready and the gates enforced.
func (l *Lab) Install(ctx context.Context) error { return l.install(ctx, configuration) }

// InstallHolding is [Lab.Install] with nodegate-cni.
func (l *Lab) InstallHolding(ctx context.Context) error {
	return l.install(ctx, configuration+holding)
}

// InstallWebhook is [Lab.Install] with the webhook instead of the mutation policies.
func (l *Lab) InstallWebhook(ctx context.Context) error {
	return l.install(ctx, configuration, "--mutation=webhook")
}

func (l *Lab) install(ctx context.Context, configuration string, more ...string) error {
	args := append([]string{"--mode=enforce", "--image-tag=" + l.Kit.Revision}, more...)
	if said, err := l.nodegate(ctx, "install", configuration, args...); err != nil {
		return fmt.Errorf("%w\n%s", err, said)
	}
	return l.awaitGuard(ctx)
}

// nodegate runs a command of kubectl nodegate with a configuration, and returns all
// that it said.
func (l *Lab) nodegate(ctx context.Context, command, configuration string, more ...string) (string, error) {
	config, kubeconfig := filepath.Join(l.Kit.Dir, "config.yaml"), filepath.Join(l.Kit.Dir, "admin.kubeconfig")
	if err := os.WriteFile(config, []byte(configuration), 0o600); err != nil {
		return "", err
	}
	if err := cluster.WriteKubeconfig(l.Config, kubeconfig); err != nil {
		return "", err
	}
	args := append([]string{command, "--kubeconfig=" + kubeconfig, "--config=" + config}, more...)
	said, err := exec.CommandContext(ctx, l.Kit.Kubectl, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl nodegate %s: %w", strings.Join(args, " "), err)
	}
	return string(said), err
}

// Remainder is what an uninstallation could not do: an order to the agent's program,
// and the node where it is to run.
type Remainder struct {
	Node string
	Args []string
}

// remainder is how kubectl nodegate uninstall says that.
var remainder = regexp.MustCompile(`on node (\S+) a plugin may be chained; run there: nodegate-agent (.*)`)

// Uninstall undoes [Lab.InstallHolding], and returns what is left to do. What else is
// left is an error.
func (l *Lab) Uninstall(ctx context.Context) ([]Remainder, error) {
	said, err := l.nodegate(ctx, "uninstall", configuration+holding, "--yes")
	var left []Remainder
	for _, match := range remainder.FindAllStringSubmatch(said, -1) {
		left = append(left, Remainder{Node: match[1], Args: strings.Fields(match[2])})
	}
	if (err != nil) != (len(left) > 0) || strings.Count(said, "Remains: ") != len(left) {
		return nil, errors.Join(fmt.Errorf("uninstalling:\n%s", said), err)
	}
	return left, nil
}

// RunAgent runs the agent's program once on a node, as a person would who has only
// its image: in a pod that needs no network of its own.
func (l *Lab) RunAgent(ctx context.Context, node string, args ...string) error {
	pods := l.Client.CoreV1().Pods(Namespace)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "by-hand-"},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever,
			AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{
				Name: "agent", Image: "nodegate-agent:" + l.Kit.Revision, Args: args,
				SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(0))},
				VolumeMounts:    []corev1.VolumeMount{{Name: "lists", MountPath: gate.DefaultNetDir}},
			}},
			Volumes: []corev1.Volume{{Name: "lists", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: gate.DefaultNetDir},
			}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	err = l.Await(ctx, fmt.Sprintf("%v on %s", args, node), func(ctx context.Context) (bool, error) {
		p, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodSucceeded, err
	})
	return errors.Join(err, pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}))
}

// DeleteNamespace deletes nodegate's namespace with all that is in it, and waits until
// it is gone.
func (l *Lab) DeleteNamespace(ctx context.Context) error {
	return l.Await(ctx, "the namespace to be gone", func(ctx context.Context) (bool, error) {
		err := l.Client.CoreV1().Namespaces().Delete(ctx, gate.Namespace, metav1.DeleteOptions{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

// DeleteAgents deletes the agents' DaemonSet, and waits until no agent is left.
func (l *Lab) DeleteAgents(ctx context.Context) error {
	if err := l.Client.AppsV1().DaemonSets(gate.Namespace).Delete(ctx, gate.AgentAccount, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return l.Await(ctx, "the agents to be gone", func(ctx context.Context) (bool, error) {
		list, err := l.Client.CoreV1().Pods(gate.Namespace).List(ctx, metav1.ListOptions{LabelSelector: Agents})
		return err == nil && len(list.Items) == 0, err
	})
}

// Agents selects the agents' pods.
const Agents = gate.AgentLabel + "=" + gate.AgentLabelValue

// EvictAgent evicts the agent of a node, if it has one.
func (l *Lab) EvictAgent(ctx context.Context, node string) error {
	pods := l.Client.CoreV1().Pods(gate.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: Agents, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	for i := range list.Items {
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: gate.Namespace, Name: list.Items[i].Name}}
		if err := pods.EvictV1(ctx, eviction); err != nil {
			return err
		}
	}
	return nil
}
