package manifests

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
)

// Installed selects what is rendered here, among all that is in a cluster.
const Installed = "app.kubernetes.io/part-of=nodegate"

// SetMode makes a binding or a webhook's registration select what it must in a
// mode, and reports whether it did not. Whatever else narrows it stays. What
// applies in every mode, or is of another kind, is left alone.
func SetMode(object *unstructured.Unstructured, mode gate.Mode) (changed bool, err error) {
	switch object.GetKind() {
	case "MutatingAdmissionPolicyBinding":
	case "ValidatingAdmissionPolicyBinding":
		if strings.HasPrefix(object.GetName(), writers+".") {
			return false, nil
		}
	case "MutatingWebhookConfiguration":
		return setWebhooksMode(object, mode)
	default:
		return false, nil
	}
	spec, _, err := unstructured.NestedMap(object.Object, "spec")
	if err != nil {
		return false, err
	}
	if changed, err = setSelectorMode(spec, mode, "matchResources", "objectSelector"); err != nil || !changed {
		return false, err
	}
	if selectsAll(spec["matchResources"]) {
		delete(spec, "matchResources")
	}
	return true, unstructured.SetNestedMap(object.Object, spec, "spec")
}

func setWebhooksMode(object *unstructured.Unstructured, mode gate.Mode) (changed bool, err error) {
	hooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
	if err != nil {
		return false, err
	}
	for _, hook := range hooks {
		fields, ok := hook.(map[string]any)
		if !ok {
			return false, fmt.Errorf("a webhook of %s is no object", object.GetName())
		}
		one, err := setSelectorMode(fields, mode, "objectSelector")
		if err != nil {
			return false, err
		}
		changed = changed || one
	}
	return changed, unstructured.SetNestedSlice(object.Object, hooks, "webhooks")
}

// setSelectorMode adds what selects nothing to the selector there, or takes it out.
func setSelectorMode(fields map[string]any, mode gate.Mode, path ...string) (changed bool, err error) {
	content, _, err := unstructured.NestedMap(fields, path...)
	if err != nil {
		return false, err
	}
	var selector metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &selector); err != nil {
		return false, fmt.Errorf("reading %s: %w", strings.Join(path, "."), err)
	}
	nothing := matchInMode(gate.ModePaused).ObjectSelector.MatchExpressions
	is := func(r metav1.LabelSelectorRequirement) func(metav1.LabelSelectorRequirement) bool {
		return func(other metav1.LabelSelectorRequirement) bool { return equality.Semantic.DeepEqual(r, other) }
	}
	narrowed := slices.ContainsFunc(selector.MatchExpressions, is(nothing[0])) && slices.ContainsFunc(selector.MatchExpressions, is(nothing[1]))
	if narrowed == (mode != gate.ModeEnforce) {
		return false, nil
	}
	if narrowed {
		for _, r := range nothing {
			selector.MatchExpressions = slices.DeleteFunc(selector.MatchExpressions, is(r))
		}
	} else {
		selector.MatchExpressions = append(selector.MatchExpressions, nothing...)
	}
	if content, err = runtime.DefaultUnstructuredConverter.ToUnstructured(&selector); err != nil {
		return false, err
	}
	return true, unstructured.SetNestedMap(fields, content, path...)
}

// selectsAll reports whether matchResources say nothing but what an API server
// fills in.
func selectsAll(resources any) bool {
	content, ok := resources.(map[string]any)
	var match admissionregistrationv1.MatchResources
	if !ok || runtime.DefaultUnstructuredConverter.FromUnstructured(content, &match) != nil {
		return false
	}
	empty := func(s *metav1.LabelSelector) bool {
		return s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0
	}
	return empty(match.NamespaceSelector) && empty(match.ObjectSelector) &&
		len(match.ResourceRules)+len(match.ExcludeResourceRules) == 0 &&
		(match.MatchPolicy == nil || *match.MatchPolicy == admissionregistrationv1.Equivalent)
}
