package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cases"
)

// apply applies the objects as a person with kubectl would.
func apply(ctx context.Context, c client.Client, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object.DeepCopy()), client.FieldOwner(gate.ManagerCLI), client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("applying %s %q: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// decode reads a stream of YAML documents.
func decode(data []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading policies: %w", err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &object.Object); err != nil {
			return nil, fmt.Errorf("reading policies: %w", err)
		}
		objects = append(objects, object)
	}
}

// foreignPolicies take every taint away from Nodes with the strip label.
func foreignPolicies() ([]*unstructured.Unstructured, error) {
	const policy = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: NAME}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    objectSelector: {matchLabels: {example.com/strip: "true"}}
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [nodes]}
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: "has(object.spec.taints) ? [JSONPatch{op: 'remove', path: '/spec/taints'}] : []"
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: NAME}
spec: {policyName: NAME}
---
`
	return decode([]byte(strings.ReplaceAll(policy, "NAME", "aaa.example.com") + strings.ReplaceAll(policy, "NAME", "zzz.example.com")))
}

// active waits until every policy decides as it does in the mode, which takes an
// API server a second or two, and shows it by dry-run writes.
func active(ctx context.Context, ids *identities, cfg *gate.Configuration) error {
	admin := ids.people[cases.Admin]
	editor, err := ids.client(ctx, cases.Editor, "")
	if err != nil {
		return err
	}
	probe, err := newProbe(ctx, admin)
	if err != nil {
		return err
	}
	defer func() { _ = admin.CoreV1().Nodes().Delete(ctx, probe.Name, metav1.DeleteOptions{}) }()
	agent, err := ids.client(ctx, cases.Agent, probe.Name)
	if err != nil {
		return err
	}
	enforced := cfg.Mode == gate.ModeEnforce
	checks := map[string]func() (bool, error){
		"create": func() (bool, error) {
			node, err := admin.CoreV1().Nodes().Create(ctx, blankProbe("probe-create"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err == nil && hasTaints(cfg, node) == enforced, err
		},
		// Two signs each, so that a policy which is broken in one rule is active too.
		"update": func() (bool, error) {
			kept, err := dryRun(ctx, admin, probe.Name, `{"spec":{"taints":null}}`)
			if err != nil {
				return false, err
			}
			governed, err := dryRun(ctx, admin, elsewhere, `{"metadata":{"labels":{"kubernetes.io/os":"linux","`+cases.StorageLabel+`":"true"}}}`)
			if err != nil {
				return false, err
			}
			return (hasTaints(cfg, kept) || hasTaints(cfg, governed)) == enforced, nil
		},
		"writers": func() (bool, error) {
			for i := range cfg.Gates {
				_, heartbeat := dryRun(ctx, editor, probe.Name, fmt.Sprintf(`{"metadata":{"annotations":{%q:"x"}}}`, cfg.Gates[i].HeartbeatAnnotation()))
				_, bypass := dryRun(ctx, editor, probe.Name, fmt.Sprintf(`{"metadata":{"annotations":{%q:"x"}}}`, cfg.Gates[i].BypassAnnotation()))
				if !apierrors.IsForbidden(heartbeat) && !apierrors.IsForbidden(bypass) {
					return false, errors.Join(heartbeat, bypass)
				}
			}
			return true, nil
		},
		"tolerated prefixes": func() (bool, error) {
			_, err := dryRun(ctx, agent, probe.Name, `{"metadata":{"labels":{"`+cases.ToleratedPrefix+`probe":"x"}}}`)
			return apierrors.IsForbidden(err) == (len(cfg.ToleratedPrefixes) == 0), err
		},
		// The last binding that is applied is that of the storage gate's final object.
		"final": func() (bool, error) {
			node := blankProbe("probe-final")
			node.Labels[cases.StripLabel] = stripAgain
			_, err := admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return apierrors.IsForbidden(err) == enforced, err
		},
		"foreign policies": func() (bool, error) {
			for _, value := range []string{stripByPolicy, stripByWebhook, stripAgain} {
				node := blankProbe("probe-foreign")
				node.Labels = map[string]string{cases.StripLabel: value}
				node.Spec.Taints = []corev1.Taint{{Key: "example.com/a", Effect: corev1.TaintEffectNoSchedule}}
				node, err := admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if err != nil || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "example.com/a" }) {
					return false, err
				}
			}
			return true, nil
		},
	}
	for name, check := range checks {
		var last error
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			var done bool
			done, last = check()
			return done, nil
		})
		if err != nil {
			return fmt.Errorf("waiting for the policies to be active in mode %s: %s: %w", cfg.Mode, name, errors.Join(err, last))
		}
	}
	return nil
}

// dryRun is what a merge patch would make of a Node.
func dryRun(ctx context.Context, client kubernetes.Interface, node, patch string) (*corev1.Node, error) {
	return client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
}

// newProbe creates an armed Node, whatever the policies do meanwhile.
func newProbe(ctx context.Context, admin kubernetes.Interface) (*corev1.Node, error) {
	node := blankProbe("probe")
	node.Spec.Taints = []corev1.Taint{
		{Key: gate.DefaultTaintKey, Effect: corev1.TaintEffectNoSchedule},
		{Key: "storage.example.com/not-ready", Value: "startup", Effect: corev1.TaintEffectNoSchedule},
	}
	created, err := admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating the probe node: %w", err)
	}
	return created, nil
}

func blankProbe(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.io/os": "linux", cases.StorageLabel: "true",
	}}}
}

func hasTaints(cfg *gate.Configuration, node *corev1.Node) bool {
	for i := range cfg.Gates {
		if !cfg.Gates[i].Armed(node) {
			return false
		}
	}
	return true
}
