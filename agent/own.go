package agent

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// ownNode is the newest that was seen of the agent's Node, whether in a watch
// event, in the answer to a write or in one to a read. A watch lags behind the
// agent's own writes; without the answers each of them would be made twice.
type ownNode struct {
	// changed is called when something newer was seen.
	changed func()

	mu   sync.Mutex
	node *corev1.Node
	// turn counts what was seen.
	turn uint64
}

// get returns the Node; nil if there is none, or none was seen yet. It must not
// be changed. The turn is what [ownNode.answer] asks for.
func (o *ownNode) get() (*corev1.Node, uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.node, o.turn
}

// event takes note of what the watch shows, unless something newer was seen.
func (o *ownNode) event(node *corev1.Node) {
	o.take(node, func() bool { return o.node == nil || newerThan(node, o.node) })
}

// answer takes note of the answer to a request that was sent after the turn. If
// nothing was seen since, it is the newest whatever its version: a cluster that
// was restored from a backup counts from an earlier one.
func (o *ownNode) answer(node *corev1.Node, turn uint64) {
	_, _ = shrink(node)
	o.take(node, func() bool { return o.turn == turn || o.node != nil && newerThan(node, o.node) })
}

func (o *ownNode) take(node *corev1.Node, newest func() bool) {
	o.mu.Lock()
	taken := newest()
	if taken {
		o.node = node
		o.turn++
	}
	o.mu.Unlock()
	if taken {
		o.changed()
	}
}

// gone takes note that a Node was deleted.
func (o *ownNode) gone(uid types.UID) {
	o.mu.Lock()
	deleted := o.node != nil && o.node.UID == uid
	if deleted {
		o.node = nil
		o.turn++
	}
	o.mu.Unlock()
	if deleted {
		o.changed()
	}
}

// newerThan trusts the last message where versions cannot be compared.
func newerThan(a, b *corev1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}

// watch follows the one Node until the context ends. Where it cannot, it says
// why, each time that it tries in vain.
func (o *ownNode) watch(ctx context.Context, client rest.Interface, name string, failed func(error)) {
	informer := newInformer(client, source{
		resource: "nodes", object: &corev1.Node{}, shrink: shrink,
		choose: metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()},
	}, failed)
	_, _ = informer.AddEventHandler(o.handler()) // fails only for one that has ended
	informer.RunWithContext(ctx)
}

func (o *ownNode) handler() cache.ResourceEventHandler {
	see := func(object any) {
		if node, ok := object.(*corev1.Node); ok {
			o.event(node)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, object any) { see(object) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if node, ok := object.(*corev1.Node); ok {
				o.gone(node.UID)
			}
		},
	}
}

// shrink drops what is large in a Node and of no use here.
func shrink(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		node.ManagedFields = nil
		node.Status.Images = nil
	}
	return object, nil
}
