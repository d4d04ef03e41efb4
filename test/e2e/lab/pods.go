//go:build linux

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
)

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
			if p := &list.Items[i]; p.DeletionTimestamp != nil || !placement.Ready(p) {
				return false, nil
			}
		}
		return len(list.Items) > 0, nil
	})
}

// Patch changes a part of the spec of nodegate's daemonset or deployment.
func (l *Lab) Patch(ctx context.Context, kind, name string, spec any) error {
	body, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	return l.Client.AppsV1().RESTClient().Patch(types.StrategicMergePatchType).
		Namespace(gate.Namespace).Resource(kind + "s").Name(name).Body(body).Do(ctx).Error()
}

// AwaitRoll waits until a daemonset's or deployment's pods are all of its last
// template, as many as wanted, and ready, and none is left of others.
func (l *Lab) AwaitRoll(ctx context.Context, kind, name string) error {
	return l.Await(ctx, fmt.Sprintf("the roll of %s", name), func(ctx context.Context) (bool, error) {
		if kind == "daemonset" {
			d, err := l.Client.AppsV1().DaemonSets(gate.Namespace).Get(ctx, name, metav1.GetOptions{})
			return err == nil && daemonSetRolled(d), err
		}
		d, err := l.Client.AppsV1().Deployments(gate.Namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && deploymentRolled(d), err
	})
}

func daemonSetRolled(d *appsv1.DaemonSet) bool {
	s := d.Status
	return s.ObservedGeneration == d.Generation && s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberReady == s.DesiredNumberScheduled
}

func deploymentRolled(d *appsv1.Deployment) bool {
	s, want := d.Status, *d.Spec.Replicas
	return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == want && s.Replicas == want && s.ReadyReplicas == want
}

// PinController has the controller run on one node, and returns when it guards.
func (l *Lab) PinController(ctx context.Context, node string) error {
	err := l.Patch(ctx, "deployment", gate.ControllerAccount, map[string]any{"template": map[string]any{
		"spec": map[string]any{"nodeSelector": map[string]any{corev1.LabelHostname: node}},
	}})
	if err != nil {
		return err
	}
	if err := l.AwaitRoll(ctx, "deployment", gate.ControllerAccount); err != nil {
		return err
	}
	return l.awaitGuard(ctx)
}

// awaitGuard waits until the Lease is held by a pod that is not ending.
func (l *Lab) awaitGuard(ctx context.Context) error {
	return l.Await(ctx, "a guard", func(ctx context.Context) (bool, error) {
		lease, err := l.Client.CoordinationV1().Leases(gate.Namespace).Get(ctx, gate.ControllerLease, metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return false, err
		}
		pods, err := l.Client.CoreV1().Pods(gate.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
			return p.DeletionTimestamp == nil && placement.Ready(&p) && strings.HasPrefix(*lease.Spec.HolderIdentity, p.Name)
		}), nil
	})
}

// DeleteNode deletes a Node object.
func (l *Lab) DeleteNode(ctx context.Context, name string) error {
	return l.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
}
