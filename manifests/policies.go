package manifests

import (
	"bytes"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/nodegate/nodegate/gate"
)

// MutationVersion is the version of MutatingAdmissionPolicy that a cluster
// serves.
type MutationVersion string

const (
	// MutationV1 is served from Kubernetes 1.36.
	MutationV1 MutationVersion = "admissionregistration.k8s.io/v1"
	// MutationV1beta1 is served by Kubernetes 1.34 and 1.35, where it must be
	// switched on.
	MutationV1beta1 MutationVersion = "admissionregistration.k8s.io/v1beta1"
)

// Policies renders the admission policies of every gate and their bindings, in
// the order in which they are applied.
func Policies(cfg *gate.Configuration, version MutationVersion) ([]*unstructured.Unstructured, error) {
	return policies(cfg, version, nil)
}

func policies(cfg *gate.Configuration, version MutationVersion, retired []gate.Retired) ([]*unstructured.Unstructured, error) {
	mutation, err := MutationPolicies(cfg, version)
	if err != nil {
		return nil, err
	}
	validation, err := validationPolicies(cfg, retired)
	if err != nil {
		return nil, err
	}
	return append(mutation, validation...), nil
}

// MutationPolicies renders the policies that arm, for clusters that do not use
// the webhook. Their bindings select nothing unless the mode is enforce.
func MutationPolicies(cfg *gate.Configuration, version MutationVersion) ([]*unstructured.Unstructured, error) {
	var objects []runtime.Object
	for i := range cfg.Gates {
		for _, policy := range []*admissionregistrationv1.MutatingAdmissionPolicy{
			createPolicy(&cfg.Gates[i]), updatePolicy(&cfg.Gates[i]),
		} {
			objects = append(objects, policy, mutationBinding(policy, cfg.Mode))
		}
	}
	rendered, err := toUnstructured(objects)
	if err != nil {
		return nil, err
	}
	for _, object := range rendered {
		object.SetAPIVersion(string(version))
	}
	return rendered, nil
}

// MutationNames are those of a gate's mutation policies, and of their bindings.
func MutationNames(g *gate.Gate) []string {
	return []string{PolicyName(g, "create"), PolicyName(g, "update")}
}

// ValidationPolicies renders the policies on who may write what, which apply in
// every mode, and on the final object, whose binding selects nothing unless the
// mode is enforce.
func ValidationPolicies(cfg *gate.Configuration) ([]*unstructured.Unstructured, error) {
	return validationPolicies(cfg, nil)
}

func validationPolicies(cfg *gate.Configuration, retired []gate.Retired) ([]*unstructured.Unstructured, error) {
	var objects []runtime.Object
	for i := range cfg.Gates {
		writers, final := writersPolicy(cfg, i, retired), finalPolicy(&cfg.Gates[i])
		objects = append(objects,
			writers, validationBinding(writers, gate.ModeEnforce, admissionregistrationv1.Deny),
			final, validationBinding(final, cfg.Mode, finalActions(cfg.Gates[i].FinalObject)...))
	}
	return toUnstructured(objects)
}

// YAML writes the objects as one stream of documents.
func YAML(objects []*unstructured.Unstructured) ([]byte, error) {
	var out bytes.Buffer
	for i, object := range objects {
		document, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("writing %s %q: %w", object.GetKind(), object.GetName(), err)
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(document)
	}
	return out.Bytes(), nil
}

func finalActions(action gate.FinalObjectAction) []admissionregistrationv1.ValidationAction {
	if action == gate.FinalObjectDeny {
		return []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	}
	return []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit, admissionregistrationv1.Warn}
}

func mutationBinding(policy *admissionregistrationv1.MutatingAdmissionPolicy, mode gate.Mode,
) *admissionregistrationv1.MutatingAdmissionPolicyBinding {
	return &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: policy.APIVersion, Kind: "MutatingAdmissionPolicyBinding"},
		ObjectMeta: *policy.ObjectMeta.DeepCopy(),
		Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{
			PolicyName:     policy.Name,
			MatchResources: matchInMode(mode),
		},
	}
}

func validationBinding(policy *admissionregistrationv1.ValidatingAdmissionPolicy, mode gate.Mode,
	actions ...admissionregistrationv1.ValidationAction,
) *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
	return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: policy.APIVersion, Kind: "ValidatingAdmissionPolicyBinding"},
		ObjectMeta: *policy.ObjectMeta.DeepCopy(),
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        policy.Name,
			ValidationActions: actions,
			MatchResources:    matchInMode(mode),
		},
	}
}

// matchInMode narrows a binding to nothing unless the mode is enforce: no object
// both has and lacks a label. A binding is never deleted for a mode, so that
// changing it is one small write.
func matchInMode(mode gate.Mode) *admissionregistrationv1.MatchResources {
	if mode == gate.ModeEnforce {
		return nil
	}
	return &admissionregistrationv1.MatchResources{
		ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: gate.ExemptLabel, Operator: metav1.LabelSelectorOpExists},
			{Key: gate.ExemptLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
		}},
	}
}

func matchNodes(rules ...admissionregistrationv1.NamedRuleWithOperations) *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{ResourceRules: rules}
}

func rule(resource string, operations ...admissionregistrationv1.OperationType) admissionregistrationv1.NamedRuleWithOperations {
	return admissionregistrationv1.NamedRuleWithOperations{
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: operations,
			Rule: admissionregistrationv1.Rule{
				APIGroups:   []string{""},
				APIVersions: []string{"v1"},
				Resources:   []string{resource},
				Scope:       new(admissionregistrationv1.ClusterScope),
			},
		},
	}
}

// objectMeta names a policy and its binding after the gate.
func objectMeta(g *gate.Gate, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: PolicyName(g, name),
		Labels: map[string]string{
			"app.kubernetes.io/name":    "nodegate",
			"app.kubernetes.io/part-of": "nodegate",
			gate.Group + "/gate":        g.Name,
		},
	}
}

// PolicyName is the name of a gate's policy and of its binding.
func PolicyName(g *gate.Gate, name string) string {
	return name + "." + g.Name + "." + gate.Group
}

// toUnstructured drops what only an API server fills in.
func toUnstructured(objects []runtime.Object) ([]*unstructured.Unstructured, error) {
	result := make([]*unstructured.Unstructured, 0, len(objects))
	for _, object := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, fmt.Errorf("rendering %T: %w", object, err)
		}
		delete(content, "status")
		if spec, ok := content["spec"].(map[string]any); ok && len(spec) == 0 {
			delete(content, "spec")
		}
		unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
		result = append(result, &unstructured.Unstructured{Object: content})
	}
	return result, nil
}
