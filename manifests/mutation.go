package manifests

import (
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

// createPolicy arms every governed Node as it is born. A kubelet whose CREATE is
// refused never registers, so there is nothing in it that could fail: a selector
// and one constant.
func createPolicy(g *gate.Gate) *admissionregistrationv1.MutatingAdmissionPolicy {
	policy := mutatingPolicy(g, "create", admissionregistrationv1.Create)
	policy.Spec.MatchConstraints.ObjectSelector = g.NodeSelector.DeepCopy()
	policy.Spec.Variables = []admissionregistrationv1.Variable{armedVariable(g)}
	policy.Spec.Mutations = addTaint(g, "!variables.armed", "value: "+quote(g.Taint.Value))
	return policy
}

// updatePolicy keeps an armed Node armed until its agent shows that it serves,
// and arms one whose heartbeat says that it must be. Its match conditions never
// ask for the taint: a policy that is skipped once is not invoked again after
// another mutator took the taint away.
func updatePolicy(g *gate.Gate) *admissionregistrationv1.MutatingAdmissionPolicy {
	policy := mutatingPolicy(g, "update", admissionregistrationv1.Update)
	policy.Spec.MatchConditions = []admissionregistrationv1.MatchCondition{
		{Name: "governed", Expression: governed("object", g.NodeSelector)},
		{Name: "not-a-kubelet", Expression: "!" + kubelet},
	}
	policy.Spec.Variables = append(judgement(g), since()...)
	policy.Spec.Mutations = addTaint(g, "!variables.armed && variables.cause != ''",
		fmt.Sprintf("value: (variables.stored.size() > 0 ? variables.stored[0].?value.orValue('') : %s), "+
			"?timeAdded: optional.ofNonZeroValue(variables.since)", quote(g.Taint.Value)))
	return policy
}

func mutatingPolicy(g *gate.Gate, name string, operation admissionregistrationv1.OperationType,
) *admissionregistrationv1.MutatingAdmissionPolicy {
	return &admissionregistrationv1.MutatingAdmissionPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "MutatingAdmissionPolicy"},
		ObjectMeta: objectMeta(g, name),
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			FailurePolicy:      new(admissionregistrationv1.Fail),
			ReinvocationPolicy: admissionregistrationv1.IfNeededReinvocationPolicy,
			MatchConstraints:   matchNodes(rule("nodes", operation)),
		},
	}
}

// addTaint is the one mutation there is. The API server builds typed objects
// only from a literal in the mutation itself, not from a variable; and those of
// Kubernetes 1.34 and 1.35 drop the request where such an object stands in a list,
// so that the list of a Node that has none is added empty.
//
// Where there is nothing to do, the patch is a test that fails, which leaves the
// Node as it is: an API server that applies an empty patch writes the whole Node
// as JSON and reads it again, twice for every write.
func addTaint(g *gate.Gate, condition, fields string) []admissionregistrationv1.Mutation {
	taint := fmt.Sprintf("Object.spec.taints{key: %s, %s, effect: %s}",
		quote(g.Taint.Key), fields, quote(string(g.Taint.Effect)))
	expression := fmt.Sprintf(`%s
? (has(object.spec.taints) ? [] : [JSONPatch{op: 'add', path: '/spec/taints', value: []}])
  + [JSONPatch{op: 'add', path: '/spec/taints/-', value: %s}]
: [JSONPatch{op: 'test', path: '/kind', value: 'nothing to do'}]`, condition, taint)
	return []admissionregistrationv1.Mutation{{
		PatchType: admissionregistrationv1.PatchTypeJSONPatch,
		JSONPatch: &admissionregistrationv1.JSONPatch{Expression: expression},
	}}
}

func armedVariable(g *gate.Gate) admissionregistrationv1.Variable {
	return admissionregistrationv1.Variable{
		Name:       "armed",
		Expression: fmt.Sprintf("%s.exists(t, %s)", taints("object"), isTaint(g)),
	}
}

// judgement says in CEL what [gate.Gate.JudgeWrite] and the decision on an UPDATE
// say in Go. The stored object answers for UID and boot id. Variables are only
// evaluated when they are asked for.
func judgement(g *gate.Gate) []admissionregistrationv1.Variable {
	heartbeat, bypass := g.HeartbeatAnnotation(), g.BypassAnnotation()
	return []admissionregistrationv1.Variable{
		armedVariable(g),
		{Name: "stored", Expression: fmt.Sprintf("%s.filter(t, %s)", taints("oldObject"), isTaint(g))},
		{Name: "present", Expression: annotation("object", heartbeat) + ".hasValue()"},
		{Name: "heartbeat", Expression: annotationText("object", heartbeat)},
		{Name: "bypass", Expression: annotationText("object", bypass)},
		{Name: "adopted", Expression: lines("||",
			"variables.present", annotation("oldObject", heartbeat)+".hasValue()",
			annotation("object", bypass)+".hasValue()", annotation("oldObject", bypass)+".hasValue()")},
		{Name: "stamps", Expression: stamps("oldObject", "object") + "\n+ " + times("variables.stored", "timeAdded")},
		{Name: "clock", Expression: latest},
		{Name: "bypassed", Expression: wellFormed("variables.bypass", gate.BypassExpression) +
			" && variables.clock != '' && variables.bypass.substring(6, 26) > variables.clock"},
		{Name: "wellFormed", Expression: wellFormed("variables.heartbeat", gate.HeartbeatExpression)},
		{Name: "tokens", Expression: "variables.heartbeat.split(' ')"},
		{Name: "bootID", Expression: "oldObject.?status.?nodeInfo.?bootID.orValue('')"},
		{Name: "alive", Expression: lines("&&", byAgent(g), "variables.present", changes(heartbeat))},
		{Name: "timeless", Expression: timeless},
		{Name: "verdict", Expression: verdict},
		{Name: "cause", Expression: cause(g)},
	}
}

// since is the time of a taint that is put back: what [gate.Decision.TimeAdded]
// is in Go.
func since() []admissionregistrationv1.Variable {
	return []admissionregistrationv1.Variable{
		{Name: "over", Expression: `variables.clock == '' ? ''
: [!variables.bypassed && ` + wellFormed("variables.bypass", gate.BypassExpression) + ` ? variables.bypass.substring(6, 26) : '',
   variables.verdict == 'Expired' ? string(timestamp(variables.tokens[2].substring(5)) + duration(variables.tokens[3].substring(4))) : ''].max()`},
		{Name: "since", Expression: `variables.stored.size() == 0 ? ''
: variables.over != '' && !` + times("variables.stored", "timeAdded") + `
.exists(t, t >= variables.over) ? variables.over
: variables.stored[0].?timeAdded.orValue(null) != null ? string(variables.stored[0].timeAdded)
: ''`},
	}
}

// timeless is the verdict that holds at any time, or empty. It is all that an open
// Node is judged by, and spares it the clock: reading all stamps is what costs.
// Nothing is parsed that has not been matched.
const timeless = `!variables.present ? 'Absent'
: !variables.wellFormed ? 'Malformed'
: variables.tokens[5] != 'node=' + oldObject.metadata.?uid.orValue('') ? 'OtherNode'
: !variables.bootID.matches('[^0-]') || variables.tokens[4] != 'boot=' + variables.bootID ? 'OtherBoot'
: variables.tokens[1] != 'ready=true' ? 'NotReady'
: ''`

// verdict tries the verdicts in the contract's order. The ttl is added to and
// taken from the clock, never from the heartbeat's time.
const verdict = `variables.bypassed ? 'Bypassed'
: variables.timeless != '' ? variables.timeless
: variables.alive ? 'Fresh'
: variables.clock == '' ? 'Expired'
: timestamp(variables.tokens[2].substring(5)) > timestamp(variables.clock) + duration(variables.tokens[3].substring(4)) ? 'FromFuture'
: timestamp(variables.tokens[2].substring(5)) <= timestamp(variables.clock) - duration(variables.tokens[3].substring(4)) ? 'Expired'
: 'Fresh'`

func cause(g *gate.Gate) string {
	var opening []string
	for _, v := range gate.Verdicts() {
		if v.Opens() {
			opening = append(opening, string(v))
		}
	}
	return fmt.Sprintf(`!(%s) ? %s
: variables.stored.size() > 0 ? (variables.verdict in %s ? '' : %s)
: variables.adopted && variables.timeless != '' && !variables.bypassed ? %s
: ''`, governed("oldObject", g.NodeSelector), quote(string(gate.CauseGoverned)),
		quoteAll(opening), quote(string(gate.CauseKept)), quote(string(gate.CauseEvidence)))
}
