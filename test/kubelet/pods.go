package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/nodegate/nodegate/test/cluster"
)

// probeInterval is how often pods are looked at.
const probeInterval = 200 * time.Millisecond

// Token asks for a token of the pod's service account, bound to the pod, with
// the kubelet's own right to do so. Like a kubelet it asks again where it is refused:
// the authorizer hears of a pod on the node by a watch, which may be late.
func (k *Kubelet) Token(ctx context.Context, pod *corev1.Pod) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	token := ""
	err := cluster.Await(ctx, func(ctx context.Context) (bool, error) {
		answer, err := k.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
		if err == nil {
			token = answer.Status.Token
		}
		return err == nil, err
	})
	if err != nil {
		return "", fmt.Errorf("requesting token of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return token, nil
}

// runPods keeps the status of the node's pods until the context ends.
func (k *Kubelet) runPods(ctx context.Context) {
	pods := cache.NewFilteredListWatchFromClient(k.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", k.Name).String()
		})
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: pods, ObjectType: &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{},
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	defer func() { <-done }()
	k.repeat(ctx, probeInterval, func(ctx context.Context) error {
		for _, object := range store.List() {
			if pod, ok := object.(*corev1.Pod); ok {
				k.report(ctx, k.syncPod(ctx, pod))
			}
		}
		return nil
	})
}

// syncPod brings one pod to where a kubelet would have it.
func (k *Kubelet) syncPod(ctx context.Context, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("removing pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		return nil
	}
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	ready := corev1.ConditionFalse
	if k.Ready(ctx, pod) {
		ready = corev1.ConditionTrue
	}
	if pod.Status.Phase == corev1.PodRunning && conditionOf(pod, corev1.PodReady) == ready {
		return nil
	}
	return k.postPodStatus(ctx, pod, ready)
}

func (k *Kubelet) postPodStatus(ctx context.Context, pod *corev1.Pod, ready corev1.ConditionStatus) error {
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning}
	if pod.Status.StartTime == nil {
		status.StartTime = &now
	}
	for kind, value := range map[corev1.PodConditionType]corev1.ConditionStatus{
		corev1.PodInitialized: corev1.ConditionTrue, corev1.ContainersReady: ready, corev1.PodReady: ready,
	} {
		if conditionOf(pod, kind) != value {
			status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: value, LastTransitionTime: now})
		}
	}
	// The UID keeps it from another pod of the same name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encoding status: %w", err)
	}
	_, err = k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("posting status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func conditionOf(pod *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == kind {
			return condition.Status
		}
	}
	return corev1.ConditionUnknown
}
