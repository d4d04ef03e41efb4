package report

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/notice"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/golden"
)

//go:generate go test -run Golden . -update

// TestStatus_Golden: the shape is a promise to programs.
func TestStatus_Golden(t *testing.T) {
	text, err := json.MarshalIndent(NewStatus(zoo(t)), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Expect(t, "testdata/status.json", append(text, '\n'))
}

func TestHeartbeats_Golden(t *testing.T) {
	in := zoo(t)
	at := slices.IndexFunc(in.Nodes, func(n corev1.Node) bool { return n.Name == "not-ready" })
	in.Nodes = in.Nodes[at : at+1]
	in.Nodes[0].Annotations[gate.HeartbeatPrefix+"removed"] = "v=0"
	text, err := json.MarshalIndent(NewHeartbeats(in), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Expect(t, "testdata/heartbeats.json", append(text, '\n'))
}

func kinds(s *Status) []FindingKind {
	var found []FindingKind
	for _, f := range s.Findings {
		found = append(found, f.Kind)
	}
	return found
}

// TestStatus_Findings: what is amiss is told, and nothing else.
func TestStatus_Findings(t *testing.T) {
	calm := func(t *testing.T) *Input {
		in := zoo(t)
		in.Nodes = slices.DeleteFunc(in.Nodes, func(n corev1.Node) bool { return n.Name != "fresh" })
		return in
	}
	nodes := func(names ...string) func(*testing.T, *Input) {
		return func(t *testing.T, in *Input) {
			in.Nodes = slices.DeleteFunc(zoo(t).Nodes, func(n corev1.Node) bool { return !slices.Contains(names, n.Name) })
		}
	}
	all := func(changes ...func(*testing.T, *Input)) func(*testing.T, *Input) {
		return func(t *testing.T, in *Input) {
			for _, change := range changes {
				change(t, in)
			}
		}
	}
	mode := func(configured gate.Mode) func(*testing.T, *Input) {
		return func(t *testing.T, in *Input) {
			in.Config.Mode = configured
			policies, err := manifests.Policies(in.Config, manifests.MutationV1)
			if err != nil {
				t.Fatal(err)
			}
			in.Admission = policies
			in.Lease.Annotations[gate.ModeAnnotation] = string(configured)
		}
	}
	note := func(key, value string) func(*testing.T, *Input) {
		return func(_ *testing.T, in *Input) { in.Lease.Annotations[key] = value }
	}
	admission := func(change func([]*unstructured.Unstructured) []*unstructured.Unstructured) func(*testing.T, *Input) {
		return func(_ *testing.T, in *Input) { in.Admission = change(in.Admission) }
	}
	edit := func(kind string, value any, path ...string) func(*testing.T, *Input) {
		return func(t *testing.T, in *Input) {
			at := slices.IndexFunc(in.Admission, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind })
			if err := unstructured.SetNestedField(in.Admission[at].Object, value, path...); err != nil {
				t.Fatal(err)
			}
		}
	}
	webhook := func(client bool) func(*testing.T, *Input) {
		return func(t *testing.T, in *Input) {
			policies, err := manifests.ValidationPolicies(in.Config)
			if err != nil {
				t.Fatal(err)
			}
			hook, err := manifests.Webhook(in.Config, nil)
			if err != nil {
				t.Fatal(err)
			}
			if client {
				hooks, _, _ := unstructured.NestedSlice(hook.Object, "webhooks")
				_ = unstructured.SetNestedField(hooks[0].(map[string]any), "Y2E=", "clientConfig", "caBundle")
				_ = unstructured.SetNestedSlice(hook.Object, hooks, "webhooks")
			}
			in.Admission = append(policies, hook)
		}
	}
	for name, tc := range map[string]struct {
		change func(*testing.T, *Input)
		want   []FindingKind
		says   string
	}{
		"nothing":                     {all(), nil, ""},
		"nothing, with the webhook":   {webhook(true), nil, ""},
		"a webhook without authority": {webhook(false), []FindingKind{WebhookUntrusted}, "mutate-node.nodegate.io"},
		"no guard yet":                {func(_ *testing.T, in *Input) { in.Lease = nil }, []FindingKind{GuardAbsent}, "no guard has ever run"},
		"a guard that is gone": {func(_ *testing.T, in *Input) {
			in.Lease.Spec.RenewTime = new(metav1.NewMicroTime(now.Add(-time.Minute)))
		}, []FindingKind{GuardAbsent}, "was there until 2026-11-29T11:02:05Z"},
		"a guard in another mode": {note(gate.ModeAnnotation, "paused"), []FindingKind{ModesDiffer}, "the guard is in mode paused, the configuration says enforce"},
		"suspended":               {note(gate.SuspendedAnnotation, notice.Suspension{Until: now.Add(time.Minute), Reason: "an outage"}.String()), []FindingKind{SilenceSuspended}, "an outage"},
		"suspended until now":     {note(gate.SuspendedAnnotation, notice.Suspension{Until: now, Reason: "an outage"}.String()), nil, ""},
		"suspended for too long":  {note(gate.SuspendedAnnotation, notice.Suspension{Until: now.Add(notice.LongestInterval(gate.MaxTTL) + time.Second), Reason: "an outage"}.String()), nil, ""},
		"a breaker that counts":   {note(gate.BreakerPrefix+gate.DefaultName, notice.Breaker{Armed: 1, Limit: 3}.String()), nil, ""},
		"a breaker that tripped":  {note(gate.BreakerPrefix+gate.DefaultName, notice.Breaker{Armed: 3, Limit: 3, Tripped: true}.String()), []FindingKind{BreakerTripped}, "3 Nodes were armed"},
		"admission in another mode": {func(t *testing.T, in *Input) {
			observing := gate.Default()
			observing.Mode = gate.ModeObserve
			in.Admission, _ = manifests.Policies(observing, manifests.MutationV1)
		}, []FindingKind{ModesDiffer}, "these enforce nothing: MutatingAdmissionPolicyBinding create.agent"},
		"a policy that is gone": {admission(func(all []*unstructured.Unstructured) []*unstructured.Unstructured { return all[1:] }), []FindingKind{AdmissionMissing}, "MutatingAdmissionPolicy create.agent.nodegate.io"},
		"no mutation at all": {admission(func(all []*unstructured.Unstructured) []*unstructured.Unstructured { return all[4:] }),
			[]FindingKind{AdmissionMissing}, "nothing arms in admission"},
		"a policy that was edited": {edit("ValidatingAdmissionPolicy", "Ignore", "spec", "failurePolicy"), []FindingKind{AdmissionDiffers}, "in spec.failurePolicy"},
		"a policy that was narrowed": {edit("MutatingAdmissionPolicy", []any{map[string]any{"name": "x", "expression": "false"}}, "spec", "matchConditions"),
			[]FindingKind{AdmissionDiffers}, "in spec.matchConditions"},
		"what an API server fills in": {edit("MutatingAdmissionPolicyBinding", map[string]any{"matchPolicy": "Equivalent", "objectSelector": map[string]any{}}, "spec", "matchResources"), nil, ""},
		"a binding that was narrowed": {edit("MutatingAdmissionPolicyBinding", map[string]any{"objectSelector": map[string]any{"matchLabels": map[string]any{"a": "b"}}}, "spec", "matchResources"),
			[]FindingKind{AdmissionDiffers}, "in spec.matchResources"},
		"another configuration": {func(_ *testing.T, in *Input) { in.Config.Gates[0].Taint.Key = "example.com/other" }, []FindingKind{AdmissionDiffers}, "spec.mutations"},
		"policies of a gate that was removed": {func(t *testing.T, in *Input) {
			cfg := gate.Default()
			cfg.Gates[0].Name = "old"
			left, err := manifests.ValidationPolicies(cfg)
			if err != nil {
				t.Fatal(err)
			}
			in.Admission = append(in.Admission, left...)
		}, []FindingKind{AdmissionLeft}, "writers.old.nodegate.io"},
		"admission that was not seen": {func(_ *testing.T, in *Input) {
			in.Admission, in.Unseen = nil, []Unseen{{Part: PartAdmission}}
		}, nil, ""},
		"no DaemonSet":                   {func(_ *testing.T, in *Input) { in.DaemonSets = nil }, []FindingKind{NoAgentDaemonSet}, "no DaemonSet in namespace nodegate-system"},
		"DaemonSets that were not seen":  {func(_ *testing.T, in *Input) { in.DaemonSets, in.Unseen = nil, []Unseen{{Part: PartDaemonSets}} }, nil, ""},
		"armed where no agent can run":   {nodes("cannot-run"), []FindingKind{ArmedWithoutAgent}, ": cannot-run"},
		"silent where no agent can run":  {nodes("expired-cannot-run"), nil, ""},
		"open against the rules":         {nodes("expired-open"), []FindingKind{OpenAgainstTheRules}, ": expired-open"},
		"what enforcing would arm":       {all(nodes("expired-open"), mode(gate.ModeObserve)), nil, ""},
		"an armed Node that is governed": {nodes("not-ready"), nil, ""},
		"a taint that is left":           {nodes("ungoverned-armed"), []FindingKind{TaintLeft}, ": ungoverned-armed"},
		"a taint of a gate that was": {func(t *testing.T, in *Input) {
			nodes("fresh")(t, in)
			in.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "example.com/old", Effect: corev1.TaintEffectNoSchedule}}
			in.Retired = []gate.Retired{{Name: "old", TaintKey: "example.com/old"}}
		}, []FindingKind{TaintLeft}, "the taint example.com/old of a gate that is not configured any more, so that nothing opens them: fresh"},
		"a taint that is somebody else's": {func(t *testing.T, in *Input) {
			nodes("fresh")(t, in)
			in.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "example.com/old", Effect: corev1.TaintEffectNoSchedule}}
		}, nil, ""},
		"out of the gate's reach": {nodes("ungoverned", "unadopted", "bypassed"), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := calm(t)
			tc.change(t, in)
			s := NewStatus(in)
			if diff := cmp.Diff(tc.want, kinds(s)); diff != "" {
				t.Fatalf("findings, -want +got:\n%s%+v", diff, s.Findings)
			}
			if len(s.Findings) > 0 && !strings.Contains(s.Findings[0].Message, tc.says) {
				t.Errorf("it says %q, want %q", s.Findings[0].Message, tc.says)
			}
		})
	}
}

// TestChanges: time alone is no change.
func TestChanges(t *testing.T) {
	before := NewStatus(zoo(t)).Nodes
	in := zoo(t)
	in.Now = now.Add(time.Second)
	if changed := Changes(before, NewStatus(in).Nodes); len(changed) > 0 {
		t.Errorf("a second later these have changed: %+v", changed)
	}
	in.Now = now.Add(2 * time.Minute)
	in.Nodes = slices.DeleteFunc(in.Nodes, func(n corev1.Node) bool { return n.Name == "absent" })
	in.Pods = slices.DeleteFunc(in.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == "malformed" })
	var got []string
	for _, row := range Changes(before, NewStatus(in).Nodes) {
		got = append(got, row.Node+" "+row.State+" "+string(row.Verdict))
	}
	want := []string{"agent-gone armed Expired", "fresh open Expired", "fresh-armed armed Expired", "malformed armed Malformed", "absent gone "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestStatus_OfALargeCluster names only a few Nodes in a sentence.
func TestStatus_OfALargeCluster(t *testing.T) {
	if got := some([]string{"f", "e", "d", "c", "b", "a"}); got != "a, b, c, d, e and 1 more" {
		t.Errorf("got %q", got)
	}
}
