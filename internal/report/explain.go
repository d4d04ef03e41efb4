package report

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nodegate/nodegate/gate"
)

// ExplanationKind is the kind of [Explanation].
const ExplanationKind = "Explanation"

// Explanation says of one Node why its gates are as they are, and what to do.
type Explanation struct {
	metav1.TypeMeta `json:",inline"`
	Node            string      `json:"node"`
	UID             string      `json:"uid"`
	BootID          string      `json:"bootID"`
	Created         metav1.Time `json:"created"`
	// Time is the API server's.
	Time         metav1.Time  `json:"time"`
	Installation Installation `json:"installation"`
	// Gates are all that are configured.
	Gates []Explained `json:"gates"`
	// Findings are what is amiss beyond this Node.
	Findings []Finding `json:"findings,omitempty"`
	Unseen   []Unseen  `json:"unseen,omitempty"`
}

// Explained is one gate of the Node.
type Explained struct {
	Gate     string `json:"gate"`
	Governed bool   `json:"governed"`
	// State is armed or open, also where the gate does not govern the Node.
	State string `json:"state"`
	// Why is the answer, in a few sentences.
	Why string `json:"why"`
	// Row is absent where the gate does not govern the Node.
	Row   *Row   `json:"row,omitempty"`
	Rules []Rule `json:"rules,omitempty"`
	// Events are the guard's, the latest first.
	Events []Event `json:"events,omitempty"`
	// Hint is what managedFields say, which is often wrong.
	Hint string `json:"hint,omitempty"`
	Next []Step `json:"next,omitempty"`
}

// Rule is one of those that are tried in order.
type Rule struct {
	Verdict gate.Verdict `json:"verdict"`
	// Outcome is yes, no, or empty where an earlier rule held.
	Outcome string `json:"outcome,omitempty"`
	// Seen is what the rule goes by.
	Seen string `json:"seen,omitempty"`
}

// Event is what the guard told.
type Event struct {
	Time metav1.Time `json:"time"`
	// Count is how often it happened.
	Count   int    `json:"count"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Step is what to do next.
type Step struct {
	Why     string `json:"why"`
	Command string `json:"command,omitempty"`
}

// DeepCopyObject implements [runtime.Object], for kubectl's printers, which change
// nothing.
func (e *Explanation) DeepCopyObject() runtime.Object { c := *e; return &c }

// Explain explains the one Node of the input.
func Explain(in *Input) *Explanation {
	x := newIndex(in)
	node := &in.Nodes[0]
	e := &Explanation{
		TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: ExplanationKind},
		Node:     node.Name, UID: string(node.UID), BootID: node.Status.NodeInfo.BootID, Created: node.CreationTimestamp,
		Time: metav1.NewTime(in.Now), Installation: x.installation(), Unseen: in.Unseen,
		Findings: slices.Concat(x.ofGuard(), x.ofAdmission(), x.left(false)),
	}
	for i := range in.Config.Gates {
		e.Gates = append(e.Gates, x.explain(node, &in.Config.Gates[i]))
	}
	return e
}

func (x *index) explain(node *corev1.Node, g *gate.Gate) Explained {
	e := Explained{Gate: g.Name, Governed: g.Governs(node), State: Open, Events: x.events(node, g)}
	if g.Armed(node) {
		e.State = Armed
	}
	if !e.Governed {
		e.Why, e.Next = ungoverned(node, g)
		return e
	}
	row := x.row(node, g)
	if row.State == Armed || row.AgainstTheRules {
		e.Hint = hint(node)
	}
	e.Row, e.Rules = &row, rules(node, g, row.Verdict, x.Now)
	e.Why, e.Next = x.why(node, g, row), x.next(node, g, row)
	return e
}

// events are the guard's on this gate of this Node object.
func (x *index) events(node *corev1.Node, g *gate.Gate) []Event {
	var told []Event
	for i := range x.Events {
		e := &x.Events[i]
		_, name, _ := strings.Cut(e.Action, "/")
		if name != g.Name || e.InvolvedObject.UID != "" && e.InvolvedObject.UID != node.UID {
			continue
		}
		at, count := lastOf(e)
		told = append(told, Event{Time: at, Count: count, Reason: e.Reason, Message: e.Message})
	}
	slices.SortStableFunc(told, func(a, b Event) int { return cmp.Or(b.Time.Compare(a.Time.Time), cmp.Compare(a.Reason, b.Reason)) })
	return told
}

// lastOf is when an Event happened last, and how often it has.
func lastOf(e *corev1.Event) (at metav1.Time, count int) {
	switch {
	case e.Series != nil:
		return metav1.NewTime(e.Series.LastObservedTime.Time), int(e.Series.Count)
	case !e.EventTime.IsZero():
		return metav1.NewTime(e.EventTime.Time), 1
	}
	return e.LastTimestamp, max(1, int(e.Count))
}
