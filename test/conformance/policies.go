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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cases"
	"github.com/nodegate/nodegate/test/cluster"
)

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

// active waits until everything decides as it does in this configuration, and
// shows it by dry-run writes.
func active(ctx context.Context, ids *identities, cfg *gate.Configuration, form form) error {
	if err := ids.cluster.AwaitPolicies(ctx, cfg); err != nil {
		return err
	}
	admin := ids.people[cases.Admin]
	agent, err := ids.client(ctx, cases.AgentElsewhere, elsewhere)
	if err != nil {
		return err
	}
	create := func(ctx context.Context, strip string, labels map[string]string) (*corev1.Node, error) {
		labels[cases.StripLabel] = strip
		return admin.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "probe", Labels: labels},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "example.com/a", Effect: corev1.TaintEffectNoSchedule}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	for name, inForce := range map[string]func(context.Context) (bool, error){
		"tolerated prefixes": func(ctx context.Context) (bool, error) {
			_, err := agent.CoreV1().Nodes().Patch(ctx, elsewhere, types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"`+cases.ToleratedPrefix+`probe":"x"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			return apierrors.IsForbidden(err) == (len(cfg.ToleratedPrefixes) == 0), nil
		},
		// The binding that is applied last is that of the storage gate's final object.
		"final object": func(ctx context.Context) (bool, error) {
			if form == byWebhook {
				return true, nil // the webhook leaves nothing for it to find
			}
			_, err := create(ctx, stripAgain, map[string]string{"kubernetes.io/os": "linux", cases.StorageLabel: "true"})
			return apierrors.IsForbidden(err) == (cfg.Mode == gate.ModeEnforce), nil
		},
		"foreign admission": func(ctx context.Context) (bool, error) {
			for _, strip := range []string{stripByPolicy, stripByWebhook, stripAgain} {
				node, err := create(ctx, strip, map[string]string{})
				if err != nil || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "example.com/a" }) {
					return false, err
				}
			}
			return true, nil
		},
	} {
		if err := cluster.Await(ctx, inForce); err != nil {
			return fmt.Errorf("waiting for %s: %w", name, err)
		}
	}
	return nil
}
