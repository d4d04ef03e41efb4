package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/notice"
	"github.com/nodegate/nodegate/test/golden"
)

// explained is the explanation of one animal.
func explained(t *testing.T, name string, changes ...func(*Input)) Explained {
	t.Helper()
	in := zoo(t)
	in.Nodes = slices.DeleteFunc(in.Nodes, func(n corev1.Node) bool { return n.Name != name })
	for _, change := range changes {
		change(in)
	}
	return Explain(in).Gates[0]
}

// TestExplain_Golden: what a person reads of each kind of Node.
func TestExplain_Golden(t *testing.T) {
	var all strings.Builder
	say := func(title string, e Explained) {
		fmt.Fprintf(&all, "---- %s\n\n%s\n", title, e.Why)
		for _, rule := range e.Rules {
			if rule.Outcome == "yes" {
				fmt.Fprintf(&all, "%s: %q\n", rule.Verdict, rule.Seen)
			}
		}
		for _, step := range e.Next {
			fmt.Fprintf(&all, "- %s\n", step.Why)
			if step.Command != "" {
				fmt.Fprintf(&all, "    %s\n", step.Command)
			}
		}
		all.WriteString("\n")
	}
	for _, a := range animals() {
		say(a.name, explained(t, a.name))
	}
	say("expired, on a dead node", explained(t, "expired", func(in *Input) {
		in.Nodes[0].Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionUnknown},
			{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))},
		}
	}))
	say("fresh, on a node that is well", explained(t, "fresh-armed", func(in *Input) {
		in.Nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}))
	say("absent, no DaemonSet", explained(t, "absent", func(in *Input) { in.DaemonSets, in.Pods = nil, nil }))
	say("absent, pods unseen", explained(t, "absent", func(in *Input) { in.Pods, in.Unseen = nil, []Unseen{{Part: PartPods}} }))
	say("absent, observed", explained(t, "absent", func(in *Input) { in.Config.Mode = gate.ModeObserve }))
	say("expired-open, paused", explained(t, "expired-open", func(in *Input) { in.Config.Mode = gate.ModePaused }))
	say("expired-open, no guard", explained(t, "expired-open", func(in *Input) { in.Lease = nil }))
	say("expired-open, suspended", explained(t, "expired-open", func(in *Input) {
		in.Lease.Annotations[gate.SuspendedAnnotation] = notice.Suspension{Until: now.Add(time.Minute), Reason: "nobody led for 20s"}.String()
	}))
	say("expired-open, breaker tripped", explained(t, "expired-open", func(in *Input) {
		in.Lease.Annotations[gate.BreakerPrefix+gate.DefaultName] = notice.Breaker{Armed: 3, Limit: 3, Tripped: true}.String()
	}))
	say("fresh, its pod is not Ready", explained(t, "fresh", func(in *Input) { in.Pods = nil }))
	say("unadopted, no time of installation", explained(t, "unadopted", func(in *Input) { in.InstalledAt = time.Time{} }))
	say("unadopted, configuration unseen", explained(t, "unadopted", func(in *Input) {
		in.InstalledAt, in.Unseen = time.Time{}, []Unseen{{Part: PartConfiguration}}
	}))
	say("not-ready, several gates", explained(t, "not-ready", func(in *Input) {
		other := *gate.DefaultGate()
		other.Name, other.Taint.Key = "other", "example.com/other"
		in.Config.Gates = append(in.Config.Gates, other)
	}))
	golden.Expect(t, "testdata/explain.txt", []byte(all.String()))
}

// TestExplain_Rules: all are named in order, and none is looked at beyond the one that
// holds.
func TestExplain_Rules(t *testing.T) {
	for _, a := range animals() {
		e := explained(t, a.name)
		if !e.Governed {
			continue
		}
		holds := slices.IndexFunc(e.Rules, func(r Rule) bool { return r.Outcome == "yes" })
		if len(e.Rules) != len(gate.Verdicts()) || holds < 0 || e.Rules[holds].Verdict != e.Row.Verdict {
			t.Fatalf("%s: rules %+v, verdict %s", a.name, e.Rules, e.Row.Verdict)
		}
		for i, rule := range e.Rules {
			if rule.Verdict != gate.Verdicts()[i] || (rule.Outcome == "no") != (i < holds) || (rule.Seen == "") != (i > holds) {
				t.Errorf("%s: rule %d is %+v, %d holds", a.name, i, rule, holds)
			}
		}
	}
}

// TestExplain_Who: the guard's Events tell, and managedFields hint.
func TestExplain_Who(t *testing.T) {
	event := func(action, reason string, ago time.Duration, count int32, change ...func(*corev1.Event)) corev1.Event {
		e := corev1.Event{Action: action, Reason: reason, EventTime: metav1.NewMicroTime(now.Add(-time.Hour)), Message: "by admission"}
		if count > 1 {
			e.Series = &corev1.EventSeries{Count: count, LastObservedTime: metav1.NewMicroTime(now.Add(-ago))}
		} else {
			e.EventTime = metav1.NewMicroTime(now.Add(-ago))
		}
		for _, c := range change {
			c(&e)
		}
		return e
	}
	e := explained(t, "not-ready", func(in *Input) {
		in.Events = []corev1.Event{
			event("Open/agent", "Opened", 3*time.Minute, 1),
			event("Arm/agent", "NotReady", time.Minute, 7),
			event("Arm/other", "Absent", time.Second, 1),
			event("Arm/agent", "Created", time.Second, 1, func(e *corev1.Event) { e.InvolvedObject.UID = "an earlier Node" }),
			{Action: "Arm/agent", Reason: "Old", LastTimestamp: metav1.NewTime(now.Add(-2 * time.Minute))},
		}
		field := func(manager, fields, subresource string, ago time.Duration) metav1.ManagedFieldsEntry {
			return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, FieldsV1: metav1.NewFieldsV1(fields), Time: new(metav1.NewTime(now.Add(-ago)))}
		}
		in.Nodes[0].ManagedFields = []metav1.ManagedFieldsEntry{
			field("kubelet", `{"f:status":{}}`, "status", 0), {Manager: "odd"}, field("odder", `[`, "", 0),
			field("kubectl-taint", `{"f:spec":{"f:taints":{}}}`, "", time.Minute), field("older", `{"f:spec":{"f:taints":{}}}`, "", time.Hour),
		}
	})
	var got []string
	for _, event := range e.Events {
		got = append(got, fmt.Sprintf("%s %d %s", event.Reason, event.Count, now.Sub(event.Time.Time)))
	}
	if want := []string{"NotReady 7 1m0s", "Old 1 2m0s", "Opened 1 3m0s"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if !strings.HasPrefix(e.Hint, "kubectl-taint wrote spec.taints last, at 2026-11-29T11:02:05Z, if managedFields are right") {
		t.Errorf("hint %q", e.Hint)
	}
}

// TestUnmet: it names the label.
func TestUnmet(t *testing.T) {
	selector := gate.DefaultNodeSelector()
	for name, tc := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"no label":    {nil, "the gate is for kubernetes.io/os=linux, and the node has no label kubernetes.io/os"},
		"another":     {map[string]string{"kubernetes.io/os": "windows"}, "and the node has kubernetes.io/os=windows"},
		"exempt":      {map[string]string{"kubernetes.io/os": "linux", gate.ExemptLabel: "true"}, "the gate is for nodegate.io/exempt notin (true), and the node has nodegate.io/exempt=true"},
		"all are met": {map[string]string{"kubernetes.io/os": "linux"}, "the gate's selector does not select it"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := unmet(selector, tc.labels); !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	if got := unmet(nil, nil); got != "the gate selects no node" {
		t.Errorf("without a selector: %q", got)
	}
}
