package guard

import (
	"context"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodegate/nodegate/internal/placement"
)

// podNodeName is the field by which pods are found.
const podNodeName = "spec.nodeName"

// indexPods lets the manager's client find pods by node.
func indexPods(mgr ctrl.Manager) error {
	nodeName := func(object client.Object) []string { return []string{object.(*corev1.Pod).Spec.NodeName} }
	// A manager that is being set up has started no informer that this could wait for,
	// and SetupWithManager, as controller-runtime has it, is given no context.
	ctx := context.Background() //nolint:forbidigo // nothing to end
	err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, podNodeName, nodeName)
	if err != nil {
		return fmt.Errorf("indexing pods by node: %w", err)
	}
	return nil
}

// nodeOfPod requests a look at the node to which a pod is bound.
func nodeOfPod(_ context.Context, object client.Object) []reconcile.Request {
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil
	}
	var request reconcile.Request
	request.Name = pod.Spec.NodeName
	return []reconcile.Request{request}
}

// nodeChanged passes updates of what a Node is judged by. A kubelet's report of
// its status, every few seconds, changes nothing of it but at a new boot.
func nodeChanged() predicate.Predicate {
	return onUpdate(func(before, after *corev1.Node) bool {
		return before.UID != after.UID ||
			before.Status.NodeInfo.BootID != after.Status.NodeInfo.BootID ||
			!maps.Equal(before.Labels, after.Labels) ||
			!maps.Equal(gateAnnotations(before.Annotations), gateAnnotations(after.Annotations)) ||
			!equality.Semantic.DeepEqual(before.Spec.Taints, after.Spec.Taints)
	})
}

// podChanged passes updates of where a pod is, whether it runs and whether it is
// Ready.
func podChanged() predicate.Predicate {
	return onUpdate(func(before, after *corev1.Pod) bool {
		return before.Spec.NodeName != after.Spec.NodeName || placement.Ready(before) != placement.Ready(after) ||
			processOf(before) != processOf(after) ||
			!notReadySince(before).Equal(notReadySince(after))
	})
}

// daemonSetChanged passes updates of where a DaemonSet belongs, and not of how
// many pods it has.
func daemonSetChanged() predicate.Predicate {
	return onUpdate(func(before, after *appsv1.DaemonSet) bool {
		return before.UID != after.UID || before.Generation != after.Generation ||
			(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil)
	})
}

// nodeSeen is the handler of a Node's events: it requests a look, and tells what
// the guard has seen happen.
func (g *Guard) nodeSeen() handler.EventHandler {
	enqueue := &handler.EnqueueRequestForObject{}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if node, ok := e.Object.(*corev1.Node); ok && !e.IsInInitialList {
				g.saw(nil, node)
			}
			enqueue.Create(ctx, e, queue)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			before, ok := e.ObjectOld.(*corev1.Node)
			after, okAfter := e.ObjectNew.(*corev1.Node)
			if ok && okAfter {
				g.saw(before, after)
			}
			enqueue.Update(ctx, e, queue)
		},
		DeleteFunc: enqueue.Delete,
	}
}

// onUpdate passes every creation and deletion, and the updates that changed.
func onUpdate[T client.Object](changed func(before, after T) bool) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(T)
		after, okAfter := e.ObjectNew.(T)
		return ok && okAfter && changed(before, after)
	}}
}
