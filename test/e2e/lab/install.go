//go:build linux

package lab

import (
	"context"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// configuration is that of a mesh whose plugin is chained.
const configuration = `apiVersion: nodegate.io/v1alpha1
kind: Configuration
mode: enforce
gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
  checks:
  - socket: {path: /run/mesh/cni.sock}
  - conflist: {pluginType: mesh-cni}
`

// Install installs nodegate, and returns when its controller is ready.
func (l *Lab) Install(ctx context.Context) error {
	objects, err := manifests.Install(manifests.Options{Config: configuration})
	if err != nil {
		return err
	}
	for _, object := range objects {
		if object.GetKind() == "ConfigMap" {
			object.SetAnnotations(map[string]string{gate.InstalledAtAnnotation: time.Now().UTC().Format(gate.TimeLayout)})
		}
	}
	if err := l.Apply(ctx, objects); err != nil {
		return err
	}
	return l.AwaitRoll(ctx, "deployment", gate.ControllerAccount)
}

// DeleteAgents deletes the agents' DaemonSet, and waits until no agent is left.
func (l *Lab) DeleteAgents(ctx context.Context) error {
	if err := l.Client.AppsV1().DaemonSets(gate.Namespace).Delete(ctx, gate.AgentAccount, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return l.Await(ctx, "the agents to be gone", func(ctx context.Context) (bool, error) {
		list, err := l.Client.CoreV1().Pods(gate.Namespace).List(ctx, metav1.ListOptions{LabelSelector: agents})
		return err == nil && len(list.Items) == 0, err
	})
}

// agents selects the agents' pods.
const agents = gate.AgentLabel + "=" + gate.AgentLabelValue

// EvictAgent evicts the agent of a node, if it has one.
func (l *Lab) EvictAgent(ctx context.Context, node string) error {
	pods := l.Client.CoreV1().Pods(gate.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: agents, FieldSelector: "spec.nodeName=" + node})
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
