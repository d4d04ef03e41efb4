//go:build linux

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/e2e/machine"
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
		switch object.GetKind() {
		case "ConfigMap":
			object.SetAnnotations(map[string]string{gate.InstalledAtAnnotation: time.Now().UTC().Format(gate.TimeLayout)})
		case "DaemonSet":
			if err := showBootID(object); err != nil {
				return err
			}
		}
	}
	if err := l.Apply(ctx, objects); err != nil {
		return err
	}
	return l.Await(ctx, "the controller to be ready", func(ctx context.Context) (bool, error) {
		deployment, err := l.Client.AppsV1().Deployments(gate.Namespace).Get(ctx, gate.ControllerAccount, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return deployment.Status.ReadyReplicas == *deployment.Spec.Replicas, nil
	})
}

// showBootID has the agent read the machine's boot id in a file, for a container's
// /proc shows the kernel's.
func showBootID(daemonSet *unstructured.Unstructured) error {
	dir := filepath.Dir(machine.BootIDFile)
	template, _, err := unstructured.NestedMap(daemonSet.Object, "spec", "template", "spec")
	if err != nil {
		return err
	}
	containers, _ := template["containers"].([]any)
	if len(containers) != 1 {
		return fmt.Errorf("the agent's DaemonSet has %d containers", len(containers))
	}
	container, _ := containers[0].(map[string]any)
	mounts, _ := container["volumeMounts"].([]any)
	volumes, _ := template["volumes"].([]any)
	container["args"] = []any{"--boot-id-path=" + machine.BootIDFile}
	container["volumeMounts"] = append(mounts, map[string]any{"name": "boot-id", "mountPath": dir, "readOnly": true})
	template["volumes"] = append(volumes, map[string]any{"name": "boot-id", "hostPath": map[string]any{"path": dir}})
	return unstructured.SetNestedMap(daemonSet.Object, template, "spec", "template", "spec")
}

// RestartPod deletes the pod of an app on a node, whose owner makes another.
func (l *Lab) RestartPod(ctx context.Context, namespace, labels, node string) error {
	pods := l.Client.CoreV1().Pods(namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: labels, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if err := pods.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// AwaitPod waits until the pod of an app on a node is ready, and is not one that is
// ending.
func (l *Lab) AwaitPod(ctx context.Context, namespace, labels, node string) error {
	return l.Await(ctx, "the pod "+labels+" on "+node, func(ctx context.Context) (bool, error) {
		list, err := l.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labels, FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			if p := &list.Items[i]; p.DeletionTimestamp != nil || !podReady(p) {
				return false, nil
			}
		}
		return len(list.Items) > 0, nil
	})
}

func podReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Patch changes a part of a DaemonSet's or Deployment's spec.
func (l *Lab) Patch(ctx context.Context, kind, name string, spec any) error {
	body, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	switch strings.ToLower(kind) {
	case "daemonset":
		_, err = l.Client.AppsV1().DaemonSets(gate.Namespace).Patch(ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	default:
		_, err = l.Client.AppsV1().Deployments(gate.Namespace).Patch(ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	}
	return err
}
