package manifests_test

import (
	"fmt"
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cases"
)

// rendered is everything that this package renders, for the default gate and for
// several, in every mode.
func rendered(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	add := func(objects []*unstructured.Unstructured, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, objects...)
	}
	for _, cfg := range []*gate.Configuration{gate.Default(), cases.Config()} {
		for _, mode := range gate.Modes() {
			cfg.Mode = mode
			add(manifests.Policies(cfg, manifests.MutationV1))
			add(manifests.Policies(cfg, manifests.MutationV1beta1))
			add(manifests.WebhookWithCertManager(cfg))
			registration, err := manifests.Webhook(cfg, nil)
			add([]*unstructured.Unstructured{registration}, err)
		}
	}
	return all
}

// TestRegistrations_CannotHarm: a registration that sees more than Nodes, or that
// can keep a cluster from repairing itself, is not rendered. A kind that is new
// here must say what holds for it.
func TestRegistrations_CannotHarm(t *testing.T) {
	checked := map[string]int{}
	for _, object := range rendered(t) {
		checked[object.GetKind()]++
		for _, fault := range lint(t, object) {
			t.Errorf("%s %s %q: %s", object.GetAPIVersion(), object.GetKind(), object.GetName(), fault)
		}
	}
	for _, kind := range []string{"MutatingWebhookConfiguration", "MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"} {
		if checked[kind] == 0 {
			t.Errorf("no %s was checked", kind)
		}
	}
}

// TestLint_Finds: the check above is one that can fail.
func TestLint_Finds(t *testing.T) {
	webhooks, err := manifests.WebhookWithCertManager(gate.Default())
	if err != nil {
		t.Fatal(err)
	}
	policies, err := manifests.Policies(gate.Default(), manifests.MutationV1)
	if err != nil {
		t.Fatal(err)
	}
	hook := func(change func(*admissionregistrationv1.MutatingWebhook)) *unstructured.Unstructured {
		var registration admissionregistrationv1.MutatingWebhookConfiguration
		convert(t, webhooks[len(webhooks)-1], &registration)
		change(&registration.Webhooks[0])
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&registration)
		if err != nil {
			t.Fatal(err)
		}
		return &unstructured.Unstructured{Object: content}
	}
	spec := func(value any, path ...string) *unstructured.Unstructured {
		policy := policies[0].DeepCopy()
		if err := unstructured.SetNestedField(policy.Object, value, append([]string{"spec"}, path...)...); err != nil {
			t.Fatal(err)
		}
		return policy
	}
	for name, object := range map[string]*unstructured.Unstructured{
		"a webhook for all resources": hook(func(h *admissionregistrationv1.MutatingWebhook) { h.Rules[0].Resources = []string{"*"} }),
		"a webhook for pods":          hook(func(h *admissionregistrationv1.MutatingWebhook) { h.Rules[0].Resources = []string{"pods"} }),
		"a webhook for the status":    hook(func(h *admissionregistrationv1.MutatingWebhook) { h.Rules[0].Resources = []string{"nodes/status"} }),
		"a webhook for deletion": hook(func(h *admissionregistrationv1.MutatingWebhook) {
			h.Rules[0].Operations = []admissionregistrationv1.OperationType{"*"}
		}),
		"a webhook without rules":      hook(func(h *admissionregistrationv1.MutatingWebhook) { h.Rules = nil }),
		"a webhook that fails closed":  hook(func(h *admissionregistrationv1.MutatingWebhook) { h.FailurePolicy = nil }),
		"a webhook that waits":         hook(func(h *admissionregistrationv1.MutatingWebhook) { h.TimeoutSeconds = new(int32(3)) }),
		"a webhook of default timeout": hook(func(h *admissionregistrationv1.MutatingWebhook) { h.TimeoutSeconds = nil }),
		"a webhook for every write":    hook(func(h *admissionregistrationv1.MutatingWebhook) { h.MatchConditions = nil }),
		"a webhook with side effects":  hook(func(h *admissionregistrationv1.MutatingWebhook) { h.SideEffects = nil }),
		"a policy that fails open":     spec("Ignore", "failurePolicy"),
		"a policy for all groups": spec([]any{map[string]any{
			"apiGroups": []any{"*"}, "apiVersions": []any{"v1"}, "operations": []any{"CREATE"}, "resources": []any{"nodes"}, "scope": "Cluster",
		}}, "matchConstraints", "resourceRules"),
		"a policy with a parameter": spec(map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}, "paramKind"),
		"a kind of which nothing is known": {Object: map[string]any{
			"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
		}},
	} {
		if len(lint(t, object)) == 0 {
			t.Errorf("%s is not found", name)
		}
	}
}

func convert(t *testing.T, object *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into); err != nil {
		t.Fatalf("reading %s %q: %v", object.GetKind(), object.GetName(), err)
	}
}

// lint returns what is wrong with an object.
func lint(t *testing.T, object *unstructured.Unstructured) []string {
	t.Helper()
	switch object.GetKind() {
	case "MutatingWebhookConfiguration":
		var registration admissionregistrationv1.MutatingWebhookConfiguration
		convert(t, object, &registration)
		var found faults
		for i := range registration.Webhooks {
			found.webhook(&registration.Webhooks[i])
		}
		return found
	case "MutatingAdmissionPolicy", "ValidatingAdmissionPolicy":
		// What is looked at stands at the same place in both, and in every version.
		var policy admissionregistrationv1.ValidatingAdmissionPolicy
		convert(t, object, &policy)
		var found faults
		seen := []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update}
		if object.GetKind() == "ValidatingAdmissionPolicy" {
			seen = append(seen, admissionregistrationv1.Delete) // of which agents are kept
		}
		found.policy(&policy.Spec, seen)
		return found
	case "MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicyBinding":
		var binding admissionregistrationv1.ValidatingAdmissionPolicyBinding
		convert(t, object, &binding)
		var found faults
		found.when(binding.Spec.PolicyName == "", "is bound to no policy")
		found.when(binding.Spec.ParamRef != nil, "depends on a parameter, which can be deleted")
		return found
	case "Issuer", "Certificate":
		return nil // registers nothing
	}
	return faults{"is of a kind of which nothing is known here"}
}

type faults []string

func (f *faults) when(wrong bool, fault string) {
	if wrong {
		*f = append(*f, fault)
	}
}

func (f *faults) webhook(h *admissionregistrationv1.MutatingWebhook) {
	f.when(h.FailurePolicy == nil || *h.FailurePolicy != admissionregistrationv1.Ignore, "does not fail open")
	f.when(h.TimeoutSeconds == nil || *h.TimeoutSeconds > 2, "may take longer than 2 s")
	f.when(h.SideEffects == nil || *h.SideEffects != admissionregistrationv1.SideEffectClassNone, "has side effects")
	f.when(len(h.MatchConditions) == 0, "is called for every write")
	f.when(len(h.Rules) == 0, "has no rules")
	for _, rule := range h.Rules {
		f.rule(rule, []string{"nodes"}, []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update})
	}
}

func (f *faults) policy(p *admissionregistrationv1.ValidatingAdmissionPolicySpec, operations []admissionregistrationv1.OperationType) {
	f.when(p.FailurePolicy == nil || *p.FailurePolicy != admissionregistrationv1.Fail, "does not fail closed")
	f.when(p.ParamKind != nil, "depends on a parameter, which can be deleted")
	f.when(p.MatchConstraints == nil || len(p.MatchConstraints.ResourceRules) == 0, "has no rules")
	if p.MatchConstraints == nil {
		return
	}
	for _, rule := range p.MatchConstraints.ResourceRules {
		f.rule(rule.RuleWithOperations, []string{"nodes", "nodes/status"}, operations)
	}
}

// rule must name what it sees, and only that. A wildcard is none of the names.
func (f *faults) rule(r admissionregistrationv1.RuleWithOperations, resources []string, operations []admissionregistrationv1.OperationType) {
	f.when(!slices.Equal(r.APIGroups, []string{""}) || !slices.Equal(r.APIVersions, []string{"v1"}), "sees other API groups than the core's v1")
	f.when(!within(r.Resources, resources), fmt.Sprintf("sees %v, not only %v", r.Resources, resources))
	f.when(!within(r.Operations, operations), fmt.Sprintf("sees %v, not only %v", r.Operations, operations))
	f.when(r.Scope == nil || *r.Scope != admissionregistrationv1.ClusterScope, "is not for objects of the cluster alone")
}

// within reports whether there are some, all of them known.
func within[T comparable](some, known []T) bool {
	return len(some) > 0 && !slices.ContainsFunc(some, func(one T) bool { return !slices.Contains(known, one) })
}
