package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// waiting waits for the parts of an installation, each for the time there is, and
// notes whether one was not seen to be active.
type waiting struct {
	*options
	c       *connection
	timeout time.Duration
	unseen  bool
}

// wait waits for a part, says what it is waiting for, and reports whether it was seen.
func (w *waiting) wait(ctx context.Context, part string, seen func(context.Context) (bool, error)) bool {
	if w.timeout <= 0 || ctx.Err() != nil {
		return false
	}
	w.sayf("Waiting up to %s for %s ...", w.timeout, part)
	limited, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	if err := poll(limited, w.telling(seen)); err != nil && ctx.Err() == nil {
		w.sayf("It was not seen: %v", err)
		w.unseen = true
		return false
	}
	return ctx.Err() == nil
}

// hint is the command that shows why a workload does not come up.
func hint(object client.Object, kind string) string {
	return fmt.Sprintf("; see kubectl -n %s describe %s,pods -l app.kubernetes.io/part-of=nodegate", object.GetNamespace(), kind)
}

// unobserved is said of a workload of which its controller has taken no note. Its
// counts mean nothing then.
const unobserved = "kube-controller-manager has not acted on it yet"

// workloads waits for controller and agents to be rolled out.
func (w *waiting) workloads(ctx context.Context, objects []*unstructured.Unstructured) {
	for _, object := range objects {
		key := client.ObjectKeyFromObject(object)
		switch object.GetKind() {
		case "Deployment":
			w.wait(ctx, "the controller to run", func(ctx context.Context) (bool, error) { return w.deployed(ctx, key) })
		case "DaemonSet":
			w.wait(ctx, "the agents to say that their nodes serve", func(ctx context.Context) (bool, error) { return w.onEveryNode(ctx, key) })
		}
	}
}

func (w *waiting) deployed(ctx context.Context, key client.ObjectKey) (bool, error) {
	object := &appsv1.Deployment{}
	if err := w.c.Get(ctx, key, object); err != nil {
		return false, err
	}
	status, replicas := object.Status, *object.Spec.Replicas
	if status.ObservedGeneration >= object.Generation && status.UpdatedReplicas == replicas && status.AvailableReplicas >= replicas && status.Replicas == replicas {
		return true, nil
	}
	if status.ObservedGeneration < object.Generation {
		return false, errors.New(unobserved + hint(object, "deployment"))
	}
	return false, fmt.Errorf("of %d replicas, %d are of this version, and %d are available%s%s",
		replicas, status.UpdatedReplicas, status.AvailableReplicas, w.trouble(ctx, object.Spec.Selector), hint(object, "deployment"))
}

func (w *waiting) onEveryNode(ctx context.Context, key client.ObjectKey) (bool, error) {
	object := &appsv1.DaemonSet{}
	if err := w.c.Get(ctx, key, object); err != nil {
		return false, err
	}
	status := object.Status
	if status.ObservedGeneration >= object.Generation && status.UpdatedNumberScheduled == status.DesiredNumberScheduled && status.NumberReady >= status.DesiredNumberScheduled {
		return true, nil
	}
	if status.ObservedGeneration < object.Generation {
		return false, errors.New(unobserved + hint(object, "daemonset"))
	}
	return false, fmt.Errorf("of %d agents, %d are of this version, and %d are ready%s%s",
		status.DesiredNumberScheduled, status.UpdatedNumberScheduled, status.NumberReady, w.trouble(ctx, object.Spec.Selector), hint(object, "daemonset"))
}

// trouble is why a pod is not ready, of the first that says so.
func (w *waiting) trouble(ctx context.Context, selector *metav1.LabelSelector) string {
	var pods corev1.PodList
	if err := w.c.List(ctx, &pods, client.InNamespace(gate.Namespace), client.MatchingLabels(selector.MatchLabels)); err != nil {
		return ""
	}
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			if waits := status.State.Waiting; waits != nil && waits.Reason != "ContainerCreating" {
				return fmt.Sprintf("; pod %s: %s: %s", pod.Name, waits.Reason, waits.Message)
			}
		}
	}
	for _, pod := range pods.Items {
		for _, condition := range pod.Status.Conditions {
			if condition.Status != corev1.ConditionTrue && condition.Message != "" {
				return fmt.Sprintf("; pod %s: %s", pod.Name, condition.Message)
			}
		}
	}
	return ""
}

// writers waits for the rules on who may write what, in whatever mode: they refuse a
// bypass that is none, from anybody.
func (w *waiting) writers(ctx context.Context, cfg *gate.Configuration) {
	inARow := 0
	w.wait(ctx, "the rules on who may write what", func(ctx context.Context) (bool, error) {
		for i := range cfg.Gates {
			g := &cfg.Gates[i]
			err := w.c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: probeName, Annotations: map[string]string{g.BypassAnnotation(): "x"},
			}}, client.DryRunAll)
			switch {
			case err == nil:
				inARow = 0
				return false, fmt.Errorf("a malformed bypass of gate %q is still let pass", g.Name)
			case strings.Contains(err.Error(), g.Message(gate.RuleBypassValue)) || strings.Contains(err.Error(), g.Message(gate.RuleBypassSet)):
			case apierrors.IsForbidden(err):
				return false, unseeable{fmt.Errorf("creating a Node by dry run: %w", err)}
			default:
				return false, err
			}
		}
		inARow++
		return inARow >= steady, nil
	})
}

// mode waits for the mode to be in effect, as a dry run and the guard show it; no Node
// that is there is written to.
func (w *waiting) mode(ctx context.Context, p plan) {
	if w.timeout <= 0 {
		return
	}
	m := &modeOptions{options: w.options, mode: p.mode, timeout: w.timeout}
	found := form{webhook: p.options.Mutation != manifests.ByPolicy}
	if err := m.await(ctx, w.c, p.cfg, found); err != nil {
		w.unseen = true
	}
}

// agentsWrite tries one write as each gate's agent, with what its token would say of
// it. If the rules or other admission refuse it, no gate could ever be opened.
func (w *waiting) agentsWrite(ctx context.Context, cfg *gate.Configuration, nodes []corev1.Node) error {
	for i := range cfg.Gates {
		g := &cfg.Gates[i]
		node := firstGoverned(g, nodes)
		if node == nil || !g.Agent.Own() || w.timeout <= 0 {
			continue
		}
		w.sayf("Trying a write of the agent, to Node %s ...", node.Name)
		switch err := w.tryAsAgent(ctx, g, node.Name); {
		case err == nil:
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "impersonate"):
			w.sayf("It was not seen: %v", err)
			w.unseen = true
		case apierrors.IsNotFound(err): // the node has gone
		default:
			return fmt.Errorf("the agent of gate %q could not open it: %w", g.Name, err)
		}
	}
	return nil
}

func firstGoverned(g *gate.Gate, nodes []corev1.Node) *corev1.Node {
	for i := range nodes {
		if g.Governs(&nodes[i]) {
			return &nodes[i]
		}
	}
	return nil
}

// authorizing is how long an API server may take to know a right that was granted.
const authorizing = 15 * time.Second

func (w *waiting) tryAsAgent(ctx context.Context, g *gate.Gate, name string) error {
	ctx, cancel := context.WithTimeout(ctx, authorizing)
	defer cancel()
	agent, err := w.c.as(g, name)
	if err != nil {
		return err
	}
	return poll(ctx, func(ctx context.Context) (bool, error) {
		node := &corev1.Node{}
		if err := w.c.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
			return false, unseeable{err}
		}
		patch, value, err := opening(g, node, w.c.clock.Now())
		if err != nil {
			return false, unseeable{err}
		}
		err = agent.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch), client.DryRunAll, client.FieldOwner(gate.ManagerAgent))
		switch {
		case apierrors.IsConflict(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cannot patch resource"):
			return false, err // the right was granted a moment ago
		case err != nil:
			return false, unseeable{err}
		case node.Annotations[g.HeartbeatAnnotation()] != value:
			return false, unseeable{fmt.Errorf("other admission makes %q of its heartbeat %q", node.Annotations[g.HeartbeatAnnotation()], value)}
		case g.Armed(node) && node.Status.NodeInfo.BootID != "":
			return false, unseeable{fmt.Errorf("other admission puts taint %s back", g.Taint.Key)}
		}
		return true, nil
	})
}

// opening is the write by which an agent opens its Node.
func opening(g *gate.Gate, node *corev1.Node, now time.Time) (patch []byte, value string, err error) {
	boot := node.Status.NodeInfo.BootID
	if boot == "" {
		boot = "none"
	}
	value, err = gate.Heartbeat{Ready: true, Time: now.UTC().Truncate(time.Second), TTL: time.Minute, BootID: boot, NodeUID: node.UID}.Format()
	if err != nil {
		return nil, "", err
	}
	patch, err = json.Marshal(map[string]any{
		"metadata": map[string]any{
			"resourceVersion": node.ResourceVersion,
			"annotations":     map[string]any{g.HeartbeatAnnotation(): value},
		},
		"spec": map[string]any{"taints": g.WithoutTaint(node.Spec.Taints)},
	})
	return patch, value, err
}

// as is a client that writes as the gate's agent on a node: with the caller's right to
// impersonate, which is refused to most.
func (c *connection) as(g *gate.Gate, node string) (client.Client, error) {
	config := rest.CopyConfig(c.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: g.Agent.Username(),
		Extra:    map[string][]string{gate.ExtraNodeName: {node}, gate.ExtraPodUID: {"00000000-0000-0000-0000-000000000000"}},
	}
	agent, err := client.New(config, client.Options{Mapper: c.RESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("creating client: %w", err)
	}
	return agent, nil
}
