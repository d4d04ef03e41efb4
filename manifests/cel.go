package manifests

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

// quote writes a CEL string literal.
func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`).Replace(s) + "'"
}

func quoteAll(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = quote(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// lines joins the parts of an expression, one a line.
func lines(operator string, parts ...string) string {
	return strings.Join(parts, "\n"+operator+" ")
}

// annotation is the optional value of an annotation of a Node that is not null.
func annotation(object, key string) string {
	return fmt.Sprintf("%s.metadata.?annotations[?%s]", object, quote(key))
}

// annotationText is its text, or empty. A value that is known to be a string
// keeps the compiler from taking size() for that of bytes.
func annotationText(object, key string) string {
	return fmt.Sprintf("string(%s.orValue(''))", annotation(object, key))
}

// changes tests whether a write that has an object changes the annotation.
func changes(key string) string {
	return annotation("object", key) + " != " + annotationBefore(key)
}

// annotationBefore is the optional value in oldObject, which is null on CREATE.
func annotationBefore(key string) string {
	return fmt.Sprintf("(oldObject == null ? optional.none() : %s)", annotation("oldObject", key))
}

// taints is the list of a Node's taints. The field is absent where there are
// none.
func taints(object string) string {
	return object + ".spec.?taints.orValue([])"
}

// isTaint tests the element t: identity is key and effect.
func isTaint(g *gate.Gate) string {
	return fmt.Sprintf("t.key == %s && t.effect == %s", quote(g.Taint.Key), quote(string(g.Taint.Effect)))
}

// governed says in CEL what [gate.Gate.Governs] says in Go. Requirements stand in
// the order of their keys, so that the same gate always renders to the same text.
func governed(object string, selector *metav1.LabelSelector) string {
	if selector == nil {
		return "false"
	}
	var parts []string
	for _, key := range sortedKeys(selector.MatchLabels) {
		parts = append(parts, requirement(object, metav1.LabelSelectorRequirement{
			Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{selector.MatchLabels[key]},
		}))
	}
	for _, r := range selector.MatchExpressions {
		parts = append(parts, requirement(object, r))
	}
	if len(parts) == 0 {
		return "true"
	}
	return lines("&&", parts...)
}

func requirement(object string, r metav1.LabelSelectorRequirement) string {
	label := fmt.Sprintf("%s.metadata.?labels[?%s]", object, quote(r.Key))
	switch r.Operator {
	case metav1.LabelSelectorOpIn:
		return fmt.Sprintf("%s.optMap(v, v in %s).orValue(false)", label, quoteAll(r.Values))
	case metav1.LabelSelectorOpNotIn:
		return fmt.Sprintf("%s.optMap(v, !(v in %s)).orValue(true)", label, quoteAll(r.Values))
	case metav1.LabelSelectorOpExists:
		return label + ".hasValue()"
	case metav1.LabelSelectorOpDoesNotExist:
		return "!" + label + ".hasValue()"
	}
	return "false"
}

// username is the caller's. A request of a caller without a name lacks the field.
const username = "request.userInfo.?username.orValue('')"

// isUser tests whether a user of this name writes.
func isUser(name string) string { return username + " == " + quote(name) }

// kubelet tests whether a kubelet writes.
const kubelet = "(" + username + ".startsWith('" + gate.KubeletUserPrefix + "')" +
	" && '" + gate.KubeletGroup + "' in request.userInfo.?groups.orValue([]))"

// byAgent tests whether the gate's agent writes, with a token bound to a pod on
// this very node.
func byAgent(g *gate.Gate) string {
	return lines("&&",
		isUser(g.Agent.Username()),
		fmt.Sprintf("request.userInfo.?extra[?%s].orValue([]) == [request.name]", quote(gate.ExtraNodeName)),
		fmt.Sprintf("request.userInfo.?extra[?%s].orValue([]).size() > 0", quote(gate.ExtraPodUID)))
}

// authorized asks the cluster's authorizer for a verb on the gate.
func authorized(g *gate.Gate, verb string) string {
	return fmt.Sprintf("authorizer.group(%s).resource(%s).name(%s).check(%s).allowed()",
		quote(gate.Group), quote(gate.ResourceGates), quote(g.Name), quote(verb))
}

// wellFormed tests length, then form: matching is what costs.
func wellFormed(value, expression string) string {
	return fmt.Sprintf("%s.size() <= %d && %s.matches(r%s)", value, gate.MaxAnnotationBytes, value, "'"+expression+"'")
}

// stamps lists the times in the managedFields of the objects that can be those
// of a working clock. Of a list that is too long none is looked at: lists grow by
// being copied. A time is a string to CEL, in this form of 20 characters,
// or null; strings of this form sort as the times do.
func stamps(objects ...string) string {
	entries := make([]string, len(objects))
	for i, object := range objects {
		entries[i] = fmt.Sprintf("%s.metadata.?managedFields.optMap(m, m.size() > %d ? [] : m).orValue([])", object, gate.MaxStamps)
	}
	return times("("+strings.Join(entries, " + ")+")", "time")
}

// times lists the usable times in a field of the elements of a list.
func times(list, field string) string {
	return fmt.Sprintf("%s\n.filter(m, m.?%s.orValue(null) != null && m.%s.size() == %d && m.%s >= %s && m.%s <= %s)\n.map(m, string(m.%s))",
		list, field, field, len(gate.MinTime), field, quote(gate.MinTime), field, quote(gate.MaxTime), field)
}

// latest is the last of the stamps, or empty.
const latest = "variables.stamps.size() == 0 ? '' : variables.stamps.max()"

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
