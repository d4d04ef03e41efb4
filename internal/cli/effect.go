package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/report"
)

const (
	pollInterval = 100 * time.Millisecond
	// tellInterval is how long a person is left without news, at least.
	tellInterval = 10 * time.Second
	// steady is how often in a row admission must be seen in the mode: there may be
	// several API servers and several replicas of the webhook.
	steady = 10
	// probeName is of a Node that is created by dry run only.
	probeName = "nodegate-mode-probe"
)

// await waits until the mode is seen to be in effect.
func (o *modeOptions) await(ctx context.Context, c *connection, cfg *gate.Configuration, found form) error {
	limited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	unseen := false
	for _, part := range []struct {
		name string
		seen func(context.Context) (bool, error)
	}{
		{"admission", o.admissionSeen(c, cfg)},
		{"the guard", o.guardSeen(c)},
	} {
		o.sayf("Waiting up to %s for %s to be in mode %s ...", o.timeout, part.name, o.mode)
		if err := poll(limited, o.telling(part.seen)); err != nil {
			if ctx.Err() != nil {
				return err
			}
			o.sayf("It was not seen: %v", err)
			unseen = true
		}
	}
	if found.webhook && o.mode == gate.ModeEnforce {
		o.sayf("Each replica of the webhook enforces when its own configuration is up to date; this asked one at a time.")
	}
	if unseen {
		return errUnseen
	}
	return nil
}

// telling tells a person who waits what is not seen yet, and again when that changes.
func (o *options) telling(seen func(context.Context) (bool, error)) func(context.Context) (bool, error) {
	told, next := "", time.Now().Add(tellInterval)
	return func(ctx context.Context) (bool, error) {
		holds, err := seen(ctx)
		if _, never := errors.AsType[unseeable](err); err == nil || never || ctx.Err() != nil || time.Now().Before(next) || err.Error() == told {
			return holds, err
		}
		o.sayf("    not yet: %v", err)
		told, next = err.Error(), time.Now().Add(tellInterval)
		return holds, err
	}
}

// unseeable is an error that no waiting helps against.
type unseeable struct{ error }

// poll waits until something is seen. Errors that may pass are in the error where
// time is over.
func poll(ctx context.Context, seen func(context.Context) (bool, error)) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		holds, err := seen(ctx)
		if never, ok := errors.AsType[unseeable](err); ok {
			return false, never.error
		}
		if ctx.Err() == nil || last == nil { // that time is over says nothing of what was awaited
			last = err
		}
		return holds && err == nil, nil
	})
	if wait.Interrupted(err) && last != nil {
		return last
	}
	return err
}

// admissionSeen asks what would become of a new Node, and of a write to one that is
// there, for each gate.
func (o *modeOptions) admissionSeen(c *connection, cfg *gate.Configuration) func(context.Context) (bool, error) {
	inARow, nodes := 0, map[string]*corev1.Node{}
	return func(ctx context.Context) (bool, error) {
		for i := range cfg.Gates {
			if err := o.treated(ctx, c, &cfg.Gates[i], nodes); err != nil {
				inARow = 0
				return false, err
			}
		}
		inARow++
		return inARow >= max(o.times, steady), nil
	}
}

// treated returns an error where the gate does not treat Nodes as in the mode. nodes
// are those, by gates, that were found to ask about.
func (o *modeOptions) treated(ctx context.Context, c *connection, g *gate.Gate, nodes map[string]*corev1.Node) error {
	expect := func(what string, armed bool, err error) error {
		if err == nil && armed != (o.mode == gate.ModeEnforce) {
			err = fmt.Errorf("%s is still treated by gate %q as in another mode", what, g.Name)
		}
		return err
	}
	armed, err := bornArmed(ctx, c, g)
	if err = expect("a new Node", armed, err); err != nil {
		return err
	}
	node := nodes[g.Name]
	if node == nil {
		if node, err = c.adopted(ctx, g); err != nil {
			return err
		}
		nodes[g.Name] = node
	}
	if node.Name == "" {
		return nil
	}
	armed, err = keptArmed(ctx, c, g, node)
	if err = expect("a write to Node "+node.Name, armed, err); err != nil {
		delete(nodes, g.Name) // it may be gone, or no longer adopted
	}
	return err
}

// adopted returns a Node that the gate would keep armed; an empty one if there is none.
func (c *connection) adopted(ctx context.Context, g *gate.Gate) (*corev1.Node, error) {
	for page := (corev1.NodeList{}); ; {
		err := c.List(ctx, &page, client.Limit(pageSize), client.Continue(page.Continue))
		if apierrors.IsForbidden(err) {
			return nil, unseeable{err}
		}
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			if node := &page.Items[i]; g.Governs(node) && g.Adopted(node) {
				return node, nil
			}
		}
		if page.Continue == "" {
			return &corev1.Node{}, nil
		}
	}
}

// keptArmed reports whether a Node would be armed after a write that takes away what
// the gate goes by, and the taint. Anybody may do that who may write Nodes.
func keptArmed(ctx context.Context, c *connection, g *gate.Gate, node *corev1.Node) (bool, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{g.HeartbeatAnnotation(): nil, g.BypassAnnotation(): nil}},
		"spec":     map[string]any{"taints": g.WithoutTaint(node.Spec.Taints)},
	})
	if err != nil {
		return false, unseeable{err}
	}
	written := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	err = c.Patch(ctx, written, client.RawPatch(types.MergePatchType, patch), client.DryRunAll)
	if refused(err) {
		return false, unseeable{fmt.Errorf("writing to Node %s by dry run: %w", node.Name, err)}
	}
	return g.Armed(written), err
}

// refused reports whether an error is an answer that stays the same.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// bornArmed reports whether a Node that the gate governs would be created with its
// taint.
func bornArmed(ctx context.Context, c *connection, g *gate.Gate) (bool, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: probeName, Labels: governedLabels(g.NodeSelector)}}
	if !g.Governs(node) {
		return false, unseeable{fmt.Errorf("gate %q governs no Node of which this could make an example", g.Name)}
	}
	err := c.Create(ctx, node, client.DryRunAll)
	if refused(err) {
		return false, unseeable{fmt.Errorf("creating a Node by dry run: %w", err)}
	}
	return g.Armed(node), err
}

// governedLabels are those of a Node that the selector selects, where one can be
// told by looking at each requirement by itself.
func governedLabels(selector *metav1.LabelSelector) map[string]string {
	labels := map[string]string{}
	if selector == nil {
		return labels
	}
	for _, r := range selector.MatchExpressions {
		switch {
		case r.Operator == metav1.LabelSelectorOpIn && len(r.Values) > 0:
			labels[r.Key] = r.Values[0]
		case r.Operator == metav1.LabelSelectorOpExists && labels[r.Key] == "":
			labels[r.Key] = "example"
		}
	}
	maps.Copy(labels, selector.MatchLabels)
	return labels
}

// guardSeen reads what the guard says of itself.
func (o *modeOptions) guardSeen(c *connection) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		lease := &coordinationv1.Lease{}
		err := c.Get(ctx, client.ObjectKey{Namespace: gate.Namespace, Name: gate.ControllerLease}, lease)
		if apierrors.IsForbidden(err) {
			return false, unseeable{err}
		}
		if apierrors.IsNotFound(err) {
			return false, errors.New("no guard has ever run in this cluster: do the pods of Deployment nodegate-system/nodegate-controller run?")
		}
		if err != nil {
			return false, err
		}
		if !report.Held(lease, c.clock.Now()) {
			return false, errors.New("no guard runs")
		}
		if mode := lease.Annotations[gate.ModeAnnotation]; mode != string(o.mode) {
			return false, fmt.Errorf("the guard says that it is in mode %q", mode)
		}
		return true, nil
	}
}
