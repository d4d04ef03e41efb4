package cluster

import (
	"context"
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
	defer func() {
		_ = admin.CoreV1().Nodes().Delete(context.WithoutCancel(ctx), p.node.Name, metav1.DeleteOptions{})
	}()
	for name, inForce := range map[string]func(context.Context) (bool, error){
		"create": p.createInForce, "update": p.updateInForce, "writers": p.writersInForce,
	} {
		if err := Await(ctx, inForce); err != nil {
			return fmt.Errorf("waiting for the policies %q in mode %s: %w", name, cfg.Mode, err)
		}
	}
	return nil
}

// Await waits until a condition holds, for a minute at most. Errors of the
// condition are no end of it; the last is in the error.
func Await(ctx context.Context, condition func(context.Context) (bool, error)) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
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

const probeName = "policy-probe"

// probe is an armed Node to which writes are tried.
type probe struct {
	cfg      *gate.Configuration
	admin    kubernetes.Interface
	stranger kubernetes.Interface
	node     *corev1.Node
}

func (p *probe) create(ctx context.Context) error {
	node := p.governed(probeName)
	for i := range p.cfg.Gates {
		node.Spec.Taints = p.cfg.Gates[i].WithTaint(node.Spec.Taints)
	}
	created, err := p.admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating node %q: %w", node.Name, err)
	}
	p.node = created
	return nil
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
// counts as in force too: the taints are kept, and evidence arms.
func (p *probe) updateInForce(ctx context.Context) (bool, error) {
	kept, err := p.dryRun(ctx, p.admin, `{"spec":{"taints":null}}`)
	if err != nil {
		return false, err
	}
	refused, err := p.dryRun(ctx, p.admin, fmt.Sprintf(`{"spec":{"taints":null},"metadata":{"annotations":{%s}}}`, p.annotations()))
	if err != nil {
		return false, err
	}
	return (p.armed(kept) || p.armed(refused)) == p.enforced(), nil
}

// writersInForce looks for two signs too.
func (p *probe) writersInForce(ctx context.Context) (bool, error) {
	for i := range p.cfg.Gates {
		g := &p.cfg.Gates[i]
		_, heartbeat := p.dryRun(ctx, p.stranger, fmt.Sprintf(`{"metadata":{"annotations":{%q:"x"}}}`, g.HeartbeatAnnotation()))
		_, bypass := p.dryRun(ctx, p.stranger, fmt.Sprintf(`{"metadata":{"annotations":{%q:"x"}}}`, g.BypassAnnotation()))
		if !apierrors.IsForbidden(heartbeat) && !apierrors.IsForbidden(bypass) {
			return false, errors.Join(heartbeat, bypass)
		}
	}
	return true, nil
}

func (p *probe) annotations() string {
	text := ""
	for i := range p.cfg.Gates {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf("%q:%q", p.cfg.Gates[i].HeartbeatAnnotation(), "malformed")
	}
	return text
}

func (p *probe) dryRun(ctx context.Context, client kubernetes.Interface, patch string) (*corev1.Node, error) {
	return client.CoreV1().Nodes().Patch(ctx, p.node.Name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
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
