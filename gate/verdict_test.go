package gate_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cases"
	"github.com/nodegate/nodegate/test/gen"
)

// TestJudge_Total: every Node has a verdict, at every time; without a clock it
// does not open.
func TestJudge_Total(t *testing.T) {
	cfg := cases.Config()
	rapid.Check(t, func(t *rapid.T) {
		node := gen.Node(cfg).Draw(t, "node")
		now := rapid.SampledFrom([]time.Time{gen.Now, {}, time.Unix(0, 0), gen.Now.AddDate(200, 0, 0), gen.Now.Add(time.Nanosecond)}).Draw(t, "now")
		for i := range cfg.Gates {
			verdict := gate.Judge(node, &cfg.Gates[i], now)
			if !slices.Contains(gate.Verdicts(), verdict) {
				t.Fatalf("verdict %q is none", verdict)
			}
			if year := now.Year(); verdict.Opens() && (year < 2020 || year > 2099) {
				t.Fatalf("verdict %s at %s, which is no clock", verdict, now)
			}
			if verdict.Opens() && verdict.Timeless() {
				t.Fatalf("verdict %s both opens and arms", verdict)
			}
		}
	})
}

// TestGenerator_Reaches: the random writes of the property tests reach every
// verdict, cause and rule; else they would show nothing.
func TestGenerator_Reaches(t *testing.T) {
	cfg := cases.Config()
	seen := map[string]bool{}
	generator := gen.Write(cfg)
	for seed := range 20000 {
		w := generator.Example(seed)
		decision := cfg.Gates[0].Admit(w, cfg.Gates[0].LatestTime(w.Old, w.New))
		seen[string(decision.Verdict)], seen[string(decision.Cause)] = true, true
		seen[string(cfg.Permit(0, w, func(string) bool { return seed%4 == 0 }))] = true
	}
	var want []string
	for _, v := range gate.Verdicts() {
		want = append(want, string(v))
	}
	for _, r := range gate.Rules() {
		want = append(want, string(r))
	}
	want = append(want, string(gate.CauseCreated), string(gate.CauseGoverned), string(gate.CauseKept), string(gate.CauseEvidence))
	for _, name := range want {
		if !seen[name] {
			t.Errorf("no random write reaches %s", name)
		}
	}
}

// TestAdmit_PutsTheSameTaintBack: a taint that was put back once is put back just
// so the next time, by a judge that knows nothing but it and whose clock has moved
// on. So a removal without end is one write at most.
func TestAdmit_PutsTheSameTaintBack(t *testing.T) {
	cfg := cases.Config()
	g := &cfg.Gates[0]
	generator := gen.Write(cfg)
	kept := 0
	for seed := range 20000 {
		w := generator.Example(seed)
		first := g.Admit(w, g.LatestTime(w.Old, w.New))
		if first.Cause != gate.CauseKept || gate.LatestStamp(w.Old, w.New).IsZero() {
			continue
		}
		kept++
		old := w.New.DeepCopy()
		old.UID, old.Status = w.Old.UID, w.Old.Status
		old.Spec.Taints = g.Apply(first, old.Spec.Taints)
		for _, stamps := range [][]metav1.ManagedFieldsEntry{nil, {{Time: &metav1.Time{Time: gen.Now.Add(100 * time.Hour)}}}} {
			again := w
			again.Old, again.New = old.DeepCopy(), w.New.DeepCopy()
			again.Old.ManagedFields, again.New.ManagedFields = stamps, stamps
			if first.Verdict == gate.FromFuture && stamps != nil {
				continue // it becomes fresh, and then expires
			}
			second := g.Admit(again, g.LatestTime(again.Old, again.New))
			if diff := cmp.Diff(g.Apply(first, nil), g.Apply(second, nil)); diff != "" {
				t.Fatalf("seed %d, verdicts %s and %s, -first +second removal:\n%s", seed, first.Verdict, second.Verdict, diff)
			}
		}
	}
	if kept == 0 {
		t.Error("no random write is a removal")
	}
}

func TestLatestStamp(t *testing.T) {
	at := func(times ...time.Time) *corev1.Node {
		node := &corev1.Node{}
		for _, at := range times {
			node.ManagedFields = append(node.ManagedFields, metav1.ManagedFieldsEntry{Time: &metav1.Time{Time: at}})
		}
		node.ManagedFields = append(node.ManagedFields, metav1.ManagedFieldsEntry{})
		return node
	}
	now := gen.Now
	first, last := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2099, 12, 31, 23, 59, 59, 0, time.UTC)
	for name, tc := range map[string]struct {
		nodes []*corev1.Node
		want  time.Time
	}{
		"none":                     {[]*corev1.Node{nil, {}}, time.Time{}},
		"the later of two Nodes":   {[]*corev1.Node{at(now), at(now.Add(time.Second))}, now.Add(time.Second)},
		"another time zone":        {[]*corev1.Node{at(now.In(time.FixedZone("east", 3600)))}, now},
		"1970 and 2100":            {[]*corev1.Node{at(time.Unix(0, 0), last.Add(time.Second))}, time.Time{}},
		"the edges":                {[]*corev1.Node{at(first, last)}, last},
		"a second before the edge": {[]*corev1.Node{at(first.Add(-time.Second), first)}, first},
	} {
		if got := gate.LatestStamp(tc.nodes...); !got.Equal(tc.want) {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// TestTaints: editing adds at the end or removes, and never changes, moves or
// drops a taint of somebody else, nor the argument.
func TestTaints(t *testing.T) {
	cfg := cases.Config()
	g := &cfg.Gates[0]
	rapid.Check(t, func(t *rapid.T) {
		taints := gen.Taints(cfg, nil).Draw(t, "taints")
		before := slices.Clone(taints)
		node := func(taints []corev1.Taint) *corev1.Node { return &corev1.Node{Spec: corev1.NodeSpec{Taints: taints}} }

		with, without := g.WithTaint(taints), g.WithoutTaint(taints)

		if diff := cmp.Diff(before, taints); diff != "" {
			t.Fatalf("the argument was changed:\n%s", diff)
		}
		if !g.Armed(node(with)) || g.Armed(node(without)) {
			t.Fatalf("with: %v, without: %v", with, without)
		}
		if diff := cmp.Diff(without, g.WithoutTaint(with), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("foreign taints differ:\n%s", diff)
		}
		foreign := slices.DeleteFunc(slices.Clone(before), g.IsTaint)
		if diff := cmp.Diff(foreign, without, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("foreign taints differ:\n%s", diff)
		}
		if g.Armed(node(before)) {
			if diff := cmp.Diff(before, with); diff != "" {
				t.Fatalf("an armed Node was changed:\n%s", diff)
			}
		} else if !g.IsTaint(with[len(with)-1]) {
			t.Fatalf("the taint is not at the end: %v", with)
		}
	})
}

// TestGate_Governs: selectors match what the library's match.
func TestGate_Governs(t *testing.T) {
	operators := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
		metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}
	rapid.Check(t, func(t *rapid.T) {
		selector := &metav1.LabelSelector{MatchLabels: gen.Labels().Draw(t, "matchLabels")}
		for range rapid.IntRange(0, 2).Draw(t, "expressions") {
			r := metav1.LabelSelectorRequirement{
				Key:      rapid.SampledFrom([]string{"type", "kubernetes.io/os", gate.ExemptLabel}).Draw(t, "key"),
				Operator: rapid.SampledFrom(operators).Draw(t, "operator"),
			}
			if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
				r.Values = rapid.SliceOfN(rapid.SampledFrom([]string{"", "true", "linux"}), 1, 3).Draw(t, "values")
			}
			selector.MatchExpressions = append(selector.MatchExpressions, r)
		}
		library, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			t.Fatal(err)
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: gen.Labels().Draw(t, "labels")}}
		g := &gate.Gate{NodeSelector: selector}
		if want, got := library.Matches(labels.Set(node.Labels)), g.Governs(node); want != got {
			t.Fatalf("Governs is %t, the library says %t", got, want)
		}
	})
	if (&gate.Gate{}).Governs(&corev1.Node{}) {
		t.Error("a gate without a selector governs a Node")
	}
}

// TestJudge_Rejects: nonsense of any kind and length is malformed, never a panic.
func TestJudge_Rejects(t *testing.T) {
	g := gate.DefaultGate()
	node := cases.Blank("node-1", "uid", gen.Now)
	for _, value := range []string{"", "null", "{", "\xff\xfe", string(make([]byte, 200_000))} {
		node.Annotations = map[string]string{g.HeartbeatAnnotation(): value}
		if got := gate.Judge(node, g, gen.Now); got != gate.Malformed {
			t.Errorf("value %.20q: verdict %s, want Malformed", value, got)
		}
	}
}
