package cli

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodegate/nodegate/gate"
)

// cleaners clean Nodes at the same time.
const cleaners = 16

func isMark(annotation string) bool {
	return strings.HasPrefix(annotation, gate.HeartbeatPrefix) || strings.HasPrefix(annotation, gate.BypassPrefix)
}

// clean removes all of the gates' traces from all Nodes.
func (r *removal) clean(ctx context.Context) error {
	var s state
	if err := s.readNodes(ctx, r.c); err != nil {
		return err
	}
	cleaned, err := r.c.cleanNodes(ctx, s.nodes, r.keys)
	if cleaned > 0 {
		r.didf("%d Nodes cleaned", cleaned)
	}
	return err
}

// cleanNodes removes from each Node the taints of the keys, heartbeats and bypasses,
// and nothing else. It returns how many Nodes were changed.
func (c *connection) cleanNodes(ctx context.Context, nodes []corev1.Node, keys []string) (int, error) {
	var cleaned atomic.Int32
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cleaners)
	for i := range nodes {
		if !dirty(&nodes[i], keys) {
			continue
		}
		group.Go(func() error {
			object := newObject(corev1.SchemeGroupVersion.WithKind("Node"), "", nodes[i].Name)
			changed, err := c.change(ctx, object, func(object *unstructured.Unstructured) (bool, error) { return cleanNode(object, keys) })
			if apierrors.IsNotFound(err) {
				return nil
			}
			if changed {
				cleaned.Add(1)
			}
			return err
		})
	}
	err := group.Wait()
	return int(cleaned.Load()), err
}

// dirty reports whether a Node carries a taint of one of the keys, a heartbeat or a
// bypass.
func dirty(node *corev1.Node, keys []string) bool {
	for key := range node.Annotations {
		if isMark(key) {
			return true
		}
	}
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule && slices.Contains(keys, t.Key)
	})
}

// cleanNode edits a Node as it is stored, with fields that this program does not
// know.
func cleanNode(object *unstructured.Unstructured, keys []string) (changed bool, err error) {
	annotations := object.GetAnnotations()
	for key := range annotations {
		if isMark(key) {
			unstructured.RemoveNestedField(object.Object, "metadata", "annotations", key)
			changed = true
		}
	}
	node, err := typed(object)
	if err != nil {
		return false, err
	}
	for _, taint := range node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectNoSchedule || !slices.Contains(keys, taint.Key) {
			continue
		}
		changed = true
		if err := removeTaint(object, gate.Taint{Key: taint.Key, Effect: taint.Effect}); err != nil {
			return false, err
		}
	}
	return changed, nil
}
