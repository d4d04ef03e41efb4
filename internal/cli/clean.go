package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

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

// settling is how long Nodes may be marked again: by an API server that has not
// learned yet that admission is gone.
const settling = 10 * time.Second

// clean removes all of the gates' traces from all Nodes, and sees that they stay away.
// What does not is said in the end.
func (r *removal) clean(ctx context.Context) error {
	for until := (time.Time{}); until.IsZero() || time.Now().Before(until); {
		marked, err := r.marked(ctx, !until.IsZero())
		if err != nil || len(marked) == 0 {
			return err
		}
		cleaned, err := r.c.cleanNodes(ctx, marked, r.keys)
		if cleaned > 0 {
			r.didf("%d Nodes cleaned", cleaned)
		}
		if err != nil {
			return err
		}
		if until.IsZero() {
			until = time.Now().Add(settling)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
	}
	return nil
}

// marked lists the Nodes that carry traces; without those, if that is asked for, that
// carry nothing but the heartbeats which others' agents go on writing.
func (r *removal) marked(ctx context.Context, again bool) ([]corev1.Node, error) {
	var s state
	if err := s.readNodes(ctx, r.c); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(s.nodes, func(node corev1.Node) bool {
		if again {
			node.Annotations = maps.Clone(node.Annotations)
			for _, g := range r.foreign() {
				delete(node.Annotations, g.HeartbeatAnnotation())
			}
		}
		return !dirty(&node, r.keys)
	}), nil
}

// verifyNodes looks whether a Node is marked again.
func (r *removal) verifyNodes(ctx context.Context) error {
	var marked []corev1.Node
	err := r.persist(ctx, func(ctx context.Context) (err error) {
		marked, err = r.marked(ctx, true)
		return err
	})
	for i := range marked {
		node := &marked[i]
		for _, taint := range node.Spec.Taints {
			if isGates(taint, r.keys) {
				r.remains = append(r.remains, fmt.Sprintf("taint %s:%s of Node %s, which somebody sets again; kubectl taint node %s %s:%s-",
					taint.Key, taint.Effect, node.Name, node.Name, taint.Key, taint.Effect))
			}
		}
		for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
			if isMark(key) {
				r.remains = append(r.remains, fmt.Sprintf("annotation %s of Node %s, which somebody sets again; kubectl annotate node %s %s-", key, node.Name, node.Name, key))
			}
		}
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
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return isGates(t, keys) })
}

func isGates(taint corev1.Taint, keys []string) bool {
	return taint.Effect == corev1.TaintEffectNoSchedule && slices.Contains(keys, taint.Key)
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
		if !isGates(taint, keys) {
			continue
		}
		changed = true
		if err := removeTaint(object, gate.Taint{Key: taint.Key, Effect: taint.Effect}); err != nil {
			return false, err
		}
	}
	return changed, nil
}
