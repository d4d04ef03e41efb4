package guard

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
)

// writeTimeout bounds one write, so that an API server that does not answer holds
// no worker for ever. Whether it was done shows when the Node is looked at again.
const writeTimeout = 10 * time.Second

// act does what was decided, as the mode allows, on what there has been to look at
// since unseen.
func (g *Guard) act(ctx context.Context, node *corev1.Node, mode gate.Mode, steps []step, unseen time.Time) error {
	g.endTroubles(steps)
	if err := g.restrain(ctx, mode, steps); err != nil {
		g.release(steps)
		return err
	}
	switch mode {
	case gate.ModeEnforce:
		return g.enforce(ctx, node, steps, unseen)
	case gate.ModeObserve:
		g.observe(steps)
	}
	return nil
}

// endTroubles forgets what was done about Nodes that are open by right.
func (g *Guard) endTroubles(steps []step) {
	for _, s := range steps {
		if s.reason == "" && !s.in.gate.Armed(s.in.node) {
			g.memory.over(s.in)
		}
	}
}

// enforce arms for all gates in one write.
func (g *Guard) enforce(ctx context.Context, node *corev1.Node, steps []step, unseen time.Time) error {
	var arm []step
	for _, s := range steps {
		if s.arm {
			arm = append(arm, s)
		}
	}
	if len(arm) == 0 {
		return nil
	}
	for _, s := range arm {
		g.memory.arming(s.in, s.decision)
	}
	if err := g.write(ctx, node, arm); err != nil {
		if refused(err) {
			g.release(arm)
		}
		return err
	}
	for _, s := range arm {
		g.memory.acted(s.in, s.decision)
		g.Metrics.armed(s.in.gate, s.reason, g.now().Sub(exposedSince(s, unseen)))
		g.log().Info("Armed Node", "node", node.Name, "gate", s.in.gate.Name, "reason", s.reason, "message", s.message)
	}
	return nil
}

// refused reports whether the write was certainly not made.
func refused(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsTooManyRequests(err) || denied(err)
}

// denied reports whether the API server does not let the guard write this.
func denied(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// exposedSince is when it showed that the Node should be armed: when the trouble
// began, when the guard was told of what shows it, or when it looked.
func exposedSince(s step, unseen time.Time) time.Time {
	switch {
	case !s.since.IsZero():
		return s.since
	case !unseen.IsZero():
		return unseen
	}
	return s.in.now
}

// observe counts what would have been armed, each trouble once: an armed Node
// would stay so until the trouble is over.
func (g *Guard) observe(steps []step) {
	for _, s := range steps {
		if !s.arm || s.in.trouble.counted {
			continue
		}
		g.memory.counted(s.in)
		g.Metrics.wouldArm(s.in.gate, s.reason)
		g.log().Info("Would arm Node", "node", s.in.node.Name, "gate", s.in.gate.Name, "reason", s.reason, "message", s.message)
	}
}

// write adds the gates' taints.
func (g *Guard) write(ctx context.Context, node *corev1.Node, arm []step) error {
	patch, err := patchOf(node, arm)
	if err != nil {
		return fmt.Errorf("encoding patch of node %q: %w", node.Name, err)
	}
	// Of the answer, metadata will do: most of a Node is images.
	target := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	target.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := g.Client.Patch(ctx, target, patch, client.FieldOwner(gate.ManagerGuard)); err != nil {
		return fmt.Errorf("arming node %q: %w", node.Name, err)
	}
	return nil
}

// patchOf fails with a conflict if anybody has written the Node since it was read:
// the decision may not hold any more. Where there are taints it appends to the list
// and names no other, so that it cannot lose or revive one, nor a field of one that
// this program does not know. Where there are none, the list is as short, and the
// API server has much less to do (docs/decisions/021).
func patchOf(node *corev1.Node, arm []step) (client.Patch, error) {
	var taints []corev1.Taint
	for _, s := range arm {
		taints = s.in.gate.WithTaint(taints)
	}
	if len(node.Spec.Taints) == 0 {
		return encoded(types.StrategicMergePatchType, map[string]any{
			"metadata": map[string]string{"resourceVersion": node.ResourceVersion},
			"spec":     map[string]any{"taints": taints},
		})
	}
	operations := []operation{{Op: "replace", Path: "/metadata/resourceVersion", Value: node.ResourceVersion}}
	for _, taint := range taints {
		operations = append(operations, operation{Op: "add", Path: "/spec/taints/-", Value: taint})
	}
	return encoded(types.JSONPatchType, operations)
}

func encoded(kind types.PatchType, patch any) (client.Patch, error) {
	body, err := json.Marshal(patch)
	return client.RawPatch(kind, body), err
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}
