//go:build linux

package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
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

// install runs kubectl nodegate install.
func (l *Lab) install(ctx context.Context, configuration string, more ...string) error {
	config, kubeconfig := filepath.Join(l.Kit.Dir, "config.yaml"), filepath.Join(l.Kit.Dir, "admin.kubeconfig")
	if err := os.WriteFile(config, []byte(configuration), 0o600); err != nil {
		return err
	}
	if err := cluster.WriteKubeconfig(l.Config, kubeconfig); err != nil {
		return err
	}
	args := append([]string{"install", "--kubeconfig=" + kubeconfig, "--config=" + config, "--mode=enforce", "--image-tag=" + l.Kit.Revision}, more...)
	if said, err := exec.CommandContext(ctx, l.Kit.Kubectl, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl nodegate %s: %w\n%s", strings.Join(args, " "), err, said)
	}
	return l.awaitGuard(ctx)
}

// Uninstall deletes what [Lab.Install] has applied: what admits first, or last, which
// is the wrong order. meanwhile is called when half is done.
func (l *Lab) Uninstall(ctx context.Context, admissionFirst bool, meanwhile func()) error {
	objects, err := manifests.Install(manifests.Options{Config: configuration})
	if err != nil {
		return err
	}
	admits := func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(o.GetAPIVersion(), admissionregistrationv1.GroupName+"/")
	}
	for _, first := range []bool{true, false} {
		for _, object := range slices.Backward(objects) {
			if admits(object) == (admissionFirst == first) {
				if err := l.delete(ctx, object); err != nil {
					return err
				}
			}
		}
		if first {
			meanwhile()
		}
	}
	return nil
}

// delete deletes an object and waits until it is gone.
func (l *Lab) delete(ctx context.Context, object *unstructured.Unstructured) error {
	api, err := client.New(l.Config, client.Options{})
	if err != nil {
		return err
	}
	return l.Await(ctx, object.GetKind()+" "+object.GetName()+" to be gone", func(ctx context.Context) (bool, error) {
		err := api.Delete(ctx, object.DeepCopy())
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
