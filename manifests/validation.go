package manifests

import (
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

// writers is the first part of the name of the one policy that applies in every mode.
const writers = "writers"

// writersPolicy says who may write heartbeats and bypasses, and confines the
// agent: [gate.Configuration.Permit] in CEL. It applies in every mode.
func writersPolicy(cfg *gate.Configuration, i int, retired []gate.Retired) *admissionregistrationv1.ValidatingAdmissionPolicy {
	g := &cfg.Gates[i]
	policy := validatingPolicy(g, writers,
		rule("nodes", admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete),
		rule("nodes/status", admissionregistrationv1.Update))
	policy.Spec.MatchConditions = []admissionregistrationv1.MatchCondition{{
		Name: "concerns-the-gate",
		Expression: lines("||",
			isUser(g.Agent.Username()),
			"(object != null && "+changes(g.HeartbeatAnnotation())+")",
			"(object != null && "+changes(g.BypassAnnotation())+")"),
	}}
	policy.Spec.Variables = writersVariables(g)
	policy.Spec.Validations = append(annotationRules(g), confinement(cfg, g, agentGates(cfg, retired))...)
	return policy
}

func writersVariables(g *gate.Gate) []admissionregistrationv1.Variable {
	heartbeat, bypass := g.HeartbeatAnnotation(), g.BypassAnnotation()
	return []admissionregistrationv1.Variable{
		{Name: "isUpdate", Expression: "request.operation == 'UPDATE'"},
		{Name: "agent", Expression: byAgent(g)},
		{Name: "offMain", Expression: "request.?subResource.orValue('') != '' || " + kubelet},
		{Name: "administer", Expression: authorized(g, gate.VerbAdminister)},
		{Name: "mayBypass", Expression: authorized(g, gate.VerbBypass)},
		{Name: "setsHeartbeat", Expression: "object != null && " + annotation("object", heartbeat) + ".hasValue() && " + changes(heartbeat)},
		{Name: "removesHeartbeat", Expression: "object != null && !" + annotation("object", heartbeat) + ".hasValue() && " + changes(heartbeat)},
		{Name: "bypass", Expression: "object == null ? '' : " + annotationText("object", bypass)},
		{Name: "setsBypass", Expression: "object != null && " + annotation("object", bypass) + ".hasValue() && " + changes(bypass)},
		{Name: "removesBypass", Expression: "object != null && !" + annotation("object", bypass) + ".hasValue() && " + changes(bypass)},
		{Name: "stamps", Expression: "oldObject == null ? " + stamps("object") + " : " + stamps("oldObject", "object")},
		{Name: "clock", Expression: latest},
	}
}

func annotationRules(g *gate.Gate) []admissionregistrationv1.Validation {
	inReach := fmt.Sprintf("(%s\n  ? variables.clock != '' && timestamp(variables.bypass.substring(6, 26)) <= timestamp(variables.clock) + duration('%dh')\n  : false)",
		wellFormed("variables.bypass", gate.BypassExpression), int(gate.MaxBypass.Hours()))
	return []admissionregistrationv1.Validation{
		validation(g, gate.RuleHeartbeatSet,
			"!variables.isUpdate || !variables.setsHeartbeat || variables.agent || variables.administer"),
		validation(g, gate.RuleHeartbeatRemoved,
			"!variables.offMain || !variables.removesHeartbeat || variables.agent || variables.administer"),
		validation(g, gate.RuleBypassSet, "!variables.setsBypass || variables.mayBypass"),
		validation(g, gate.RuleBypassValue, "!variables.setsBypass || "+inReach),
		validation(g, gate.RuleBypassRemoved, "!variables.offMain || !variables.removesBypass || variables.mayBypass"),
	}
}

// agentGates are those that the agent serves, and those that were: one that is not
// rolled yet serves them still.
func agentGates(cfg *gate.Configuration, retired []gate.Retired) []*gate.Gate {
	gates := cfg.AgentGates()
	for _, r := range retired {
		was := &gate.Gate{Name: r.Name, Taint: gate.Taint{Key: r.TaintKey, Effect: corev1.TaintEffectNoSchedule}}
		for i := range cfg.Gates {
			if g := &cfg.Gates[i]; g.IsTaint(corev1.Taint{Key: r.TaintKey, Effect: was.Taint.Effect}) {
				was.Taint = g.Taint // with the value that admission gives it now
			}
		}
		gates = append(gates, was)
	}
	return gates
}

// confinement keeps the agent to its own Node and its gates.
func confinement(cfg *gate.Configuration, g *gate.Gate, gates []*gate.Gate) []admissionregistrationv1.Validation {
	isAgent := isUser(g.Agent.Username())
	if !g.Agent.Own() {
		opens := fmt.Sprintf("%s.exists(t, %s) && !%s.exists(t, %s)", taints("oldObject"), isTaint(g), taints("object"), isTaint(g))
		return []admissionregistrationv1.Validation{validation(g, gate.RuleOwnNode,
			fmt.Sprintf("!(%s) || !variables.isUpdate || variables.agent || !(%s)", isAgent, opens))}
	}
	confined := fmt.Sprintf("!(%s) || !variables.isUpdate || (", isAgent)
	return []admissionregistrationv1.Validation{
		validation(g, gate.RuleOwnNode,
			fmt.Sprintf("!(%s) || (variables.isUpdate && request.?subResource.orValue('') == '' && variables.agent)", isAgent)),
		validation(g, gate.RuleOwnMetadata, confined+sameMetadata(cfg, gates)+")"),
		validation(g, gate.RuleOwnSpec, confined+sameSpec(gates)+")"),
	}
}

func sameMetadata(cfg *gate.Configuration, gates []*gate.Gate) string {
	heartbeats := make([]string, len(gates))
	for i, g := range gates {
		heartbeats[i] = g.HeartbeatAnnotation()
	}
	tolerated := "false"
	if len(cfg.ToleratedPrefixes) > 0 {
		tolerated = quoteAll(cfg.ToleratedPrefixes) + ".exists(p, k.startsWith(p))"
	}
	return lines("&&",
		sameEntries("object.metadata.?labels.orValue({})", "oldObject.metadata.?labels.orValue({})", tolerated),
		sameEntries("object.metadata.?annotations.orValue({})", "oldObject.metadata.?annotations.orValue({})",
			"k in "+quoteAll(heartbeats)+" || "+tolerated),
		sameEntries("dyn(object.metadata)", "dyn(oldObject.metadata)",
			"k in "+quoteAll([]string{"labels", "annotations", "managedFields", "resourceVersion", "generation"})))
}

func sameSpec(gates []*gate.Gate) string {
	var ours, values []string
	for _, g := range gates {
		ours = append(ours, "("+isTaint(g)+")")
		values = append(values, ownTaintValue(g))
	}
	// The time counts only where it evicts pods.
	foreign := ".filter(t, !(" + strings.Join(ours, " || ") + "))" +
		".map(t, [string(t.key), string(t.?value.orValue('')), string(t.effect), t.effect != 'NoExecute' || t.?timeAdded.orValue(null) == null ? '' : string(t.timeAdded)])"
	parts := append(values,
		taints("object")+foreign+" == "+taints("oldObject")+foreign,
		sameEntries("dyn(object.spec)", "dyn(oldObject.spec)", "k == 'taints'"))
	return lines("&&", parts...)
}

// ownTaintValue: where the gate's taint is there after the write, it has the
// value that it had, or, newly put there by admission, the gate's.
func ownTaintValue(g *gate.Gate) string {
	stored := fmt.Sprintf("%s.filter(t, %s)", taints("oldObject"), isTaint(g))
	return fmt.Sprintf("%s.all(t, !(%s) || t.?value.orValue('') == (%s.size() > 0 ? %s[0].?value.orValue('') : %s))",
		taints("object"), isTaint(g), stored, stored, quote(g.Taint.Value))
}

// sameEntries compares two maps key by key, so that what later versions of
// Kubernetes add is compared as well. k is the key in mayDiffer.
func sameEntries(a, b, mayDiffer string) string {
	return fmt.Sprintf("%s.all(k, (k in %s && %s[k] == %s[k]) || %s)\n&& %s.all(k, k in %s || %s)",
		a, b, b, a, mayDiffer, b, a, mayDiffer)
}

// finalPolicy judges what all mutation has left, with the same expressions, and
// so reports a mutator that takes the taint away behind the gate's back.
func finalPolicy(g *gate.Gate) *admissionregistrationv1.ValidatingAdmissionPolicy {
	policy := validatingPolicy(g, "final", rule("nodes", admissionregistrationv1.Create, admissionregistrationv1.Update))
	policy.Spec.MatchConditions = []admissionregistrationv1.MatchCondition{
		{Name: "governed", Expression: governed("object", g.NodeSelector)},
		{Name: "not-a-kubelets-update", Expression: "request.operation == 'CREATE' || !" + kubelet},
	}
	policy.Spec.Variables = judgement(g)
	policy.Spec.Validations = []admissionregistrationv1.Validation{{
		Expression: "variables.armed || (request.operation == 'UPDATE' && variables.cause == '')",
		Message:    g.FinalMessage(),
		Reason:     new(metav1.StatusReasonForbidden),
	}}
	return policy
}

func validation(g *gate.Gate, rule gate.Rule, expression string) admissionregistrationv1.Validation {
	return admissionregistrationv1.Validation{
		Expression: expression,
		Message:    g.Message(rule),
		Reason:     new(metav1.StatusReasonForbidden),
	}
}

func validatingPolicy(g *gate.Gate, name string, rules ...admissionregistrationv1.NamedRuleWithOperations,
) *admissionregistrationv1.ValidatingAdmissionPolicy {
	return &admissionregistrationv1.ValidatingAdmissionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy"},
		ObjectMeta: objectMeta(g, name),
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy:    new(admissionregistrationv1.Fail),
			MatchConstraints: matchNodes(rules...),
		},
	}
}
