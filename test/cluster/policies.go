package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// InstallPolicies applies the policies of the configuration and waits until they
// are in force.
func (c *Cluster) InstallPolicies(ctx context.Context, cfg *gate.Configuration) error {
	objects, err := manifests.Policies(cfg, manifests.MutationV1)
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, objects); err != nil {
		return err
	}
	return c.AwaitPolicies(ctx, cfg)
}

// Apply applies objects as a person with kubectl would.
func (c *Cluster) Apply(ctx context.Context, objects []*unstructured.Unstructured) error {
	api, err := client.New(c.Admin, client.Options{})
	if err != nil {
		return fmt.Errorf("creating client: %w", err)
	}
	for _, object := range objects {
		err := api.Apply(ctx, client.ApplyConfigurationFromUnstructured(object.DeepCopy()),
			client.FieldOwner(gate.ManagerCLI), client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("applying %s %q: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// AwaitPolicies waits until each policy decides as it must in the configuration's
// mode, which takes an API server a second or two after they are applied. It
// shows it by dry-run writes, of a Node that all gates govern by their
// matchLabels.
func (c *Cluster) AwaitPolicies(ctx context.Context, cfg *gate.Configuration) error {
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		return fmt.Errorf("creating client: %w", err)
	}
	p := &probe{cfg: cfg, admin: admin}
	if p.stranger, err = c.stranger(); err != nil {
		return err
	}
	if err := p.create(ctx); err != nil {
		return err
	}
	defer p.delete(context.WithoutCancel(ctx))
	for name, inForce := range map[string]func(context.Context) (bool, error){
		"create": p.createInForce, "update": p.updateInForce, "writers": p.writersInForce,
	} {
		if err := Await(ctx, inForce); err != nil {
			return fmt.Errorf("waiting for the policies %q in mode %s: %w", name, cfg.Mode, err)
		}
	}
	return nil
}

// Await waits until a condition holds, for three minutes at most: the machine may be
// busy. Errors of the condition are no end of it; the last is in the error.
func Await(ctx context.Context, condition func(context.Context) (bool, error)) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		var holds bool
		holds, last = condition(ctx)
		return holds && last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// stranger may write Nodes but has no verb on a gate: what no authorizer allows is
// refused by the policies alone. A kubelet is one.
func (c *Cluster) stranger() (kubernetes.Interface, error) {
	config, err := c.Kubelet(probeName)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// probe tries writes to an armed Node, and to one outside of every gate's reach.
type probe struct {
	cfg      *gate.Configuration
	admin    kubernetes.Interface
	stranger kubernetes.Interface
}

const (
	probeName   = "policy-probe"
	outsideName = "policy-probe-outside"
)

func (p *probe) create(ctx context.Context) error {
	armed := p.governed(probeName)
	for i := range p.cfg.Gates {
		armed.Spec.Taints = p.cfg.Gates[i].WithTaint(armed.Spec.Taints)
	}
	outside := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: outsideName}}
	for _, node := range []*corev1.Node{armed, outside} {
		if _, err := p.admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating node %q: %w", node.Name, err)
		}
	}
	return nil
}

func (p *probe) delete(ctx context.Context) {
	for _, name := range []string{probeName, outsideName} {
		_ = p.admin.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}) // a leftover does no harm
	}
}

func (p *probe) governed(name string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for i := range p.cfg.Gates {
		maps.Copy(node.Labels, p.cfg.Gates[i].NodeSelector.MatchLabels)
	}
	return node
}

func (p *probe) createInForce(ctx context.Context) (bool, error) {
	node, err := p.admin.CoreV1().Nodes().Create(ctx, p.governed(probeName+"-create"),
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return false, err
	}
	return p.armed(node) == p.enforced(), nil
}

// updateInForce looks for two signs, so that a policy that is broken in one rule
// counts as in force too: taints are kept, and what becomes governed is armed.
func (p *probe) updateInForce(ctx context.Context) (bool, error) {
	kept, err := dryRun(ctx, p.admin, probeName, map[string]any{"spec": map[string]any{"taints": nil}})
	if err != nil {
		return false, err
	}
	governed, err := dryRun(ctx, p.admin, outsideName, map[string]any{"metadata": map[string]any{"labels": p.governed("").Labels}})
	if err != nil {
		return false, err
	}
	return (p.armed(kept) || p.armed(governed)) == p.enforced(), nil
}

// writersInForce looks for two signs too.
func (p *probe) writersInForce(ctx context.Context) (bool, error) {
	for i := range p.cfg.Gates {
		g := &p.cfg.Gates[i]
		_, heartbeat := dryRun(ctx, p.stranger, probeName, annotate(g.HeartbeatAnnotation()))
		_, bypass := dryRun(ctx, p.stranger, probeName, annotate(g.BypassAnnotation()))
		if !apierrors.IsForbidden(heartbeat) && !apierrors.IsForbidden(bypass) {
			return false, errors.Join(heartbeat, bypass)
		}
	}
	return true, nil
}

func annotate(key string) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: "x"}}}
}

// dryRun is what a merge patch would make of a Node.
func dryRun(ctx context.Context, client kubernetes.Interface, node string, patch map[string]any) (*corev1.Node, error) {
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, data, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
}

func (p *probe) enforced() bool { return p.cfg.Mode == gate.ModeEnforce }

func (p *probe) armed(node *corev1.Node) bool {
	for i := range p.cfg.Gates {
		if !p.cfg.Gates[i].Armed(node) {
			return false
		}
	}
	return true
}
