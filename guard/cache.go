package guard

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
)

// CacheOptions restrict a manager's cache to what the guard judges by: Nodes
// without what is of no account, and the agent's pods and DaemonSets in its
// namespaces, where a Role is enough to read them.
func CacheOptions(cfg *gate.Configuration) cache.Options {
	pods, sets := map[string]cache.Config{}, map[string]cache.Config{}
	for namespace, selector := range placement.PodSelectors(cfg) {
		sets[namespace] = cache.Config{}
		pods[namespace] = cache.Config{LabelSelector: selector}
	}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}:      {Transform: trimNode},
			&corev1.Pod{}:       {Transform: trimPod, Namespaces: pods},
			&appsv1.DaemonSet{}: {Namespaces: sets},
		},
	}
}

// trimNode keeps of a Node what the guard judges: that is some hundred bytes of
// many thousand.
func trimNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	trimmed := &corev1.Node{ObjectMeta: trimMeta(node.ObjectMeta)}
	trimmed.Labels = node.Labels
	trimmed.Annotations = gateAnnotations(node.Annotations)
	trimmed.Spec.Taints = node.Spec.Taints
	trimmed.Status.NodeInfo.BootID = node.Status.NodeInfo.BootID
	return trimmed, nil
}

// trimPod keeps of a pod where it is, whether it runs and whether it is Ready.
func trimPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	trimmed := &corev1.Pod{ObjectMeta: trimMeta(pod.ObjectMeta)}
	trimmed.Labels = pod.Labels
	trimmed.Spec.NodeName = pod.Spec.NodeName
	trimmed.Status.Phase = pod.Status.Phase
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			trimmed.Status.Conditions = []corev1.PodCondition{{
				Type: condition.Type, Status: condition.Status, LastTransitionTime: condition.LastTransitionTime,
			}}
		}
	}
	for i := range pod.Status.ContainerStatuses {
		trimmed.Status.ContainerStatuses = append(trimmed.Status.ContainerStatuses, trimContainer(&pod.Status.ContainerStatuses[i]))
	}
	return trimmed, nil
}

func trimContainer(status *corev1.ContainerStatus) corev1.ContainerStatus {
	trimmed := corev1.ContainerStatus{RestartCount: status.RestartCount}
	if status.State.Running != nil {
		trimmed.State.Running = &corev1.ContainerStateRunning{}
	}
	return trimmed
}

func trimMeta(meta metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:         meta.Namespace,
		Name:              meta.Name,
		UID:               meta.UID,
		ResourceVersion:   meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp,
	}
}

// gateAnnotations are the heartbeats and bypasses.
func gateAnnotations(annotations map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range annotations {
		if strings.HasPrefix(key, gate.HeartbeatPrefix) || strings.HasPrefix(key, gate.BypassPrefix) {
			kept[key] = value
		}
	}
	return kept
}
