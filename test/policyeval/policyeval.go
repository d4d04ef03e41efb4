// Package policyeval evaluates rendered admission policies inside the test
// process, with the API server's own CEL environment, cost accounting and
// patching. It makes thousands of writes a second possible and shows verdicts and
// costs, which an API server does not; matching by rules and bindings, and the
// order of admission, only a real one shows.
package policyeval

import (
	"context"
	"errors"
	"fmt"

	celgo "github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nodegate/nodegate/gate"
)

// Policy is a compiled policy of either kind.
type Policy struct {
	// Name is the policy's.
	Name string
	// Maps evaluates on Nodes that were converted to maps, as API servers did
	// before they learnt to read typed objects.
	Maps bool

	selector    labels.Selector
	compiler    *plugincel.CompositedCompiler
	conditions  plugincel.ConditionEvaluator
	validations plugincel.ConditionEvaluator
	messages    []string
	mutations   []plugincel.MutatingEvaluator
}

// Authorizer answers for the caller's verbs on a gate.
type Authorizer func(gateName, verb string) bool

// Result is what a policy made of a write.
type Result struct {
	// Matched says whether the match conditions let the write in.
	Matched bool
	// Node is the Node as a mutation policy leaves it.
	Node *corev1.Node
	// Denied is the message of the first validation that fails.
	Denied string
	// Cost is what the evaluation cost, in CEL's units, match conditions apart.
	Cost int64
	// ConditionCost is what the match conditions cost.
	ConditionCost int64
}

// Compile compiles a MutatingAdmissionPolicy or ValidatingAdmissionPolicy.
func Compile(object *unstructured.Unstructured) (*Policy, error) {
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, fmt.Errorf("creating CEL compiler: %w", err)
	}
	p := &Policy{Name: object.GetName(), compiler: compiler}
	switch object.GetKind() {
	case "MutatingAdmissionPolicy":
		err = p.compileMutating(object)
	case "ValidatingAdmissionPolicy":
		err = p.compileValidating(object)
	default:
		err = fmt.Errorf("kind %q is no policy", object.GetKind())
	}
	if err != nil {
		return nil, fmt.Errorf("compiling %s %q: %w", object.GetKind(), object.GetName(), err)
	}
	return p, nil
}

func (p *Policy) compileMutating(object *unstructured.Unstructured) error {
	var policy admissionregistrationv1.MutatingAdmissionPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &policy); err != nil {
		return err
	}
	var variables []expression
	for _, v := range policy.Spec.Variables {
		variables = append(variables, expression{name: v.Name, text: v.Expression})
	}
	if err := p.prepare(policy.Spec.MatchConstraints.ObjectSelector, variables, policy.Spec.MatchConditions); err != nil {
		return err
	}
	options := plugincel.OptionalVariableDeclarations{HasAuthorizer: true, HasPatchTypes: true}
	for _, m := range policy.Spec.Mutations {
		evaluator := p.compiler.CompileMutatingEvaluator(&patch.JSONPatchCondition{Expression: m.JSONPatch.Expression},
			options, environment.StoredExpressions)
		if err := errors.Join(evaluator.CompilationErrors()...); err != nil {
			return err
		}
		p.mutations = append(p.mutations, evaluator)
	}
	return nil
}

func (p *Policy) compileValidating(object *unstructured.Unstructured) error {
	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &policy); err != nil {
		return err
	}
	var variables []expression
	for _, v := range policy.Spec.Variables {
		variables = append(variables, expression{name: v.Name, text: v.Expression})
	}
	if err := p.prepare(policy.Spec.MatchConstraints.ObjectSelector, variables, policy.Spec.MatchConditions); err != nil {
		return err
	}
	var accessors []plugincel.ExpressionAccessor
	for _, v := range policy.Spec.Validations {
		accessors = append(accessors, &validating.ValidationCondition{Expression: v.Expression})
		p.messages = append(p.messages, v.Message)
	}
	p.validations = p.compiler.CompileCondition(accessors, declarations(), environment.StoredExpressions)
	return errors.Join(p.validations.CompilationErrors()...)
}

// prepare compiles what both kinds have.
func (p *Policy) prepare(selector *metav1.LabelSelector, variables []expression,
	conditions []admissionregistrationv1.MatchCondition,
) error {
	p.selector = labels.Everything()
	if selector != nil {
		var err error
		if p.selector, err = metav1.LabelSelectorAsSelector(selector); err != nil {
			return err
		}
	}
	for i := range variables {
		result := p.compiler.CompileAndStoreVariable(&variables[i], declarations(), environment.StoredExpressions)
		if result.Error != nil {
			return fmt.Errorf("variable %q: %w", variables[i].name, result.Error)
		}
	}
	accessors := make([]plugincel.ExpressionAccessor, len(conditions))
	for i, c := range conditions {
		accessors[i] = &validating.ValidationCondition{Expression: c.Expression}
	}
	p.conditions = p.compiler.CompileCondition(accessors, declarations(), environment.StoredExpressions)
	return errors.Join(p.conditions.CompilationErrors()...)
}

func declarations() plugincel.OptionalVariableDeclarations {
	return plugincel.OptionalVariableDeclarations{HasAuthorizer: true}
}

// Evaluate runs the policy on a write. An error is one that an API server would
// have had in the evaluation: a policy that is total has none.
func (p *Policy) Evaluate(ctx context.Context, w gate.Write, authorized Authorizer) (Result, error) {
	in, err := p.newInput(w, authorized)
	if err != nil {
		return Result{}, err
	}
	result := Result{Node: w.New}
	matched, cost, err := p.matches(p.compiler.CreateContext(ctx), in, w)
	result.Matched, result.ConditionCost = matched, cost
	if err != nil || !matched {
		return result, err
	}
	if p.validations != nil {
		result.Denied, result.Cost, err = p.validate(p.compiler.CreateContext(ctx), in)
		return result, err
	}
	for _, mutation := range p.mutations {
		evaluated, remaining, err := mutation.ForInput(p.compiler.CreateContext(ctx), in.attributes, in.request, in.bindings, nil, celconfig.RuntimeCELCostBudget)
		if err := errors.Join(err, evaluated.Error); err != nil {
			return result, err
		}
		result.Cost += celconfig.RuntimeCELCostBudget - remaining
		object, err := patch.NewJSONPatcher(mutation).Patch(p.compiler.CreateContext(ctx), patch.Request{
			VersionedAttributes: in.attributes, ObjectInterfaces: objectInterfaces(), OptionalVariables: in.bindings,
		}, celconfig.RuntimeCELCostBudget)
		if err != nil {
			return result, err
		}
		in.attributes.UpdateObject(object)
		if result.Node, err = patched(object); err != nil {
			return result, err
		}
	}
	return result, nil
}

// Variable evaluates a variable of type string of the policy for a write.
func (p *Policy) Variable(ctx context.Context, name string, w gate.Write, authorized Authorizer) (string, error) {
	in, err := p.newInput(w, authorized)
	if err != nil {
		return "", err
	}
	evaluator := p.compiler.CompileMutatingEvaluator(&expression{text: "variables." + name}, declarations(), environment.StoredExpressions)
	if err := errors.Join(evaluator.CompilationErrors()...); err != nil {
		return "", err
	}
	evaluated, _, err := evaluator.ForInput(p.compiler.CreateContext(ctx), in.attributes, in.request, in.bindings, nil, celconfig.RuntimeCELCostBudget)
	if err := errors.Join(err, evaluated.Error); err != nil {
		return "", err
	}
	text, ok := evaluated.EvalResult.Value().(string)
	if !ok {
		return "", fmt.Errorf("variable %q is no string but %T", name, evaluated.EvalResult.Value())
	}
	return text, nil
}

func (p *Policy) matches(ctx context.Context, in *input, w gate.Write) (matched bool, cost int64, err error) {
	if w.New == nil || !p.selector.Matches(labels.Set(w.New.Labels)) {
		if w.New != nil || !p.selector.Empty() {
			return false, 0, nil
		}
	}
	results, remaining, err := p.conditions.ForInput(ctx, in.attributes, in.request, in.bindings, nil, celconfig.RuntimeCELCostBudgetMatchConditions)
	if err != nil {
		return false, 0, err
	}
	cost = celconfig.RuntimeCELCostBudgetMatchConditions - remaining
	for _, r := range results {
		if r.Error != nil {
			return false, cost, r.Error
		}
		if r.EvalResult.Value() != true {
			return false, cost, nil
		}
	}
	return true, cost, nil
}

func (p *Policy) validate(ctx context.Context, in *input) (denied string, cost int64, err error) {
	results, remaining, err := p.validations.ForInput(ctx, in.attributes, in.request, in.bindings, nil, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return "", 0, err
	}
	for i, r := range results {
		if r.Error != nil {
			return "", 0, fmt.Errorf("validation %d: %w", i, r.Error)
		}
		if denied == "" && r.EvalResult.Value() != true {
			denied = p.messages[i]
		}
	}
	return denied, celconfig.RuntimeCELCostBudget - remaining, nil
}

// input is what the API server hands to an evaluation.
type input struct {
	attributes *admission.VersionedAttributes
	request    *admissionv1.AdmissionRequest
	bindings   plugincel.OptionalVariableBindings
}

func (p *Policy) newInput(w gate.Write, authorized Authorizer) (*input, error) {
	object, err := p.object(w.New)
	if err != nil {
		return nil, err
	}
	old, err := p.object(w.Old)
	if err != nil {
		return nil, err
	}
	kind, resource := corev1.SchemeGroupVersion.WithKind("Node"), corev1.SchemeGroupVersion.WithResource("nodes")
	attributes := admission.NewAttributesRecord(object, old, kind, "", w.Name, resource, w.Subresource,
		admission.Operation(w.Operation), nil, false, userInfo(w.User))
	versioned, err := admission.NewVersionedAttributes(attributes, kind, objectInterfaces())
	if err != nil {
		return nil, fmt.Errorf("versioning the write: %w", err)
	}
	return &input{
		attributes: versioned,
		request:    plugincel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(resource), metav1.GroupVersionKind(kind)),
		bindings:   plugincel.OptionalVariableBindings{Authorizer: gateAuthorizer(authorized)},
	}, nil
}

// object is the Node as the evaluation sees it.
func (p *Policy) object(node *corev1.Node) (runtime.Object, error) {
	if node == nil {
		return nil, nil
	}
	node = node.DeepCopy()
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	if !p.Maps {
		return node, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		return nil, fmt.Errorf("converting node %q: %w", node.Name, err)
	}
	return &unstructured.Unstructured{Object: content}, nil
}

// patched is the Node that a mutation made.
func patched(object runtime.Object) (*corev1.Node, error) {
	if node, ok := object.(*corev1.Node); ok {
		return node, nil
	}
	node := &corev1.Node{}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	return node, runtime.DefaultUnstructuredConverter.FromUnstructured(content, node)
}

func objectInterfaces() admission.ObjectInterfaces {
	return admission.NewObjectInterfacesFromScheme(scheme.Scheme)
}

func userInfo(u authenticationv1.UserInfo) user.Info {
	info := &user.DefaultInfo{Name: u.Username, UID: u.UID, Groups: u.Groups, Extra: map[string][]string{}}
	for key, value := range u.Extra {
		info.Extra[key] = value
	}
	return info
}

// gateAuthorizer allows verbs on gates and nothing else.
type gateAuthorizer Authorizer

func (g gateAuthorizer) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetAPIGroup() == gate.Group && a.GetResource() == gate.ResourceGates && g(a.GetName(), a.GetVerb()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// expression is a variable, or an expression of any type.
type expression struct{ name, text string }

func (e *expression) GetName() string            { return e.name }
func (e *expression) GetExpression() string      { return e.text }
func (e *expression) ReturnTypes() []*celgo.Type { return []*celgo.Type{celgo.AnyType, celgo.DynType} }
