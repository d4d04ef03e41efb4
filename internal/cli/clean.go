package cli

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/remnant"
)

// cleaners clean Nodes at the same time.
const cleaners = 16

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
		cleaned, err := r.cleanNodes(ctx, marked)
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

// marked lists the Nodes that carry traces.
func (r *removal) marked(ctx context.Context, again bool) ([]corev1.Node, error) {
	var s state
	if err := s.readNodes(ctx, r.c); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(s.nodes, func(node corev1.Node) bool { return r.traces(&node, again).None() }), nil
}

// traces are those that a Node carries; when it is looked at again, without the
// heartbeats that others' agents go on writing.
func (r *removal) traces(node *corev1.Node, again bool) remnant.Remnants {
	found := r.known.On(node, r.c.clock.Now())
	if again {
		foreign := r.foreign()
		found.Heartbeats = slices.DeleteFunc(found.Heartbeats, func(name string) bool {
			return slices.ContainsFunc(foreign, func(g *gate.Gate) bool { return g.Name == name })
		})
	}
	return found
}

// verifyNodes looks whether a Node is marked again.
func (r *removal) verifyNodes(ctx context.Context) error {
	var marked []corev1.Node
	err := r.persist(ctx, func(ctx context.Context) (err error) {
		marked, err = r.marked(ctx, true)
		return err
	})
	for i := range marked {
		name, found := marked[i].Name, r.traces(&marked[i], true)
		for _, taint := range found.Taints {
			r.remains = append(r.remains, fmt.Sprintf("taint %s:%s of Node %s, which somebody sets again; kubectl taint node %s %s:%s-",
				taint.Key, corev1.TaintEffectNoSchedule, name, name, taint.Key, corev1.TaintEffectNoSchedule))
		}
		for _, key := range annotations(found) {
			r.remains = append(r.remains, fmt.Sprintf("annotation %s of Node %s, which somebody sets again; kubectl annotate node %s %s-", key, name, name, key))
		}
	}
	return err
}

// cleanNodes cleans Nodes, and returns how many were changed.
func (r *removal) cleanNodes(ctx context.Context, nodes []corev1.Node) (int, error) {
	var cleaned atomic.Int32
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cleaners)
	for i := range nodes {
		group.Go(func() error {
			found, _, err := r.c.cleanNode(ctx, nodes[i].Name, r.known)
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err == nil && !found.None() {
				cleaned.Add(1)
			}
			return err
		})
	}
	err := group.Wait()
	return int(cleaned.Load()), err
}

// cleanNode removes from a Node what gates have left on it, and nothing else. It returns
// what that was, and the Node as it is then.
func (c *connection) cleanNode(ctx context.Context, name string, known remnant.Known) (found remnant.Remnants, after *unstructured.Unstructured, err error) {
	after = newObject(nodeKind, "", name)
	_, err = c.change(ctx, after, func(object *unstructured.Unstructured) (bool, error) {
		node, err := typed(object)
		if err != nil {
			return false, err
		}
		found = known.On(node, c.clock.Now())
		return !found.None(), removeRemnants(object, found)
	})
	return found, after, err
}

// removeRemnants edits a Node as it is stored, with fields that this program does not
// know.
func removeRemnants(object *unstructured.Unstructured, found remnant.Remnants) error {
	for _, key := range annotations(found) {
		unstructured.RemoveNestedField(object.Object, "metadata", "annotations", key)
	}
	for _, taint := range found.Taints {
		if err := removeTaint(object, gate.Taint{Key: taint.Key, Effect: corev1.TaintEffectNoSchedule}); err != nil {
			return err
		}
	}
	return nil
}

// annotations are the keys of what was found.
func annotations(found remnant.Remnants) []string {
	var keys []string
	for _, name := range found.Heartbeats {
		keys = append(keys, gate.HeartbeatPrefix+name)
	}
	for _, name := range found.Bypasses {
		keys = append(keys, gate.BypassPrefix+name)
	}
	return keys
}
