package manifests_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"pgregory.net/rapid"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cases"
	"github.com/nodegate/nodegate/test/gen"
	"github.com/nodegate/nodegate/test/policyeval"
)

// TestPolicies_Twin: on random and hostile Nodes the policies raise no error and
// decide exactly as package gate does, however the API server shows them a Node.
func TestPolicies_Twin(t *testing.T) {
	s := compile(t, cases.Config())
	rapid.Check(t, func(rt *rapid.T) {
		w := gen.Write(s.cfg).Draw(rt, "write")
		granted := rapid.SampledFrom([]string{"", gate.VerbAdminister, gate.VerbBypass}).Draw(rt, "granted")
		authorized := func(_, verb string) bool { return verb == granted }
		s.maps(rapid.Bool().Draw(rt, "maps"))
		for i := range s.cfg.Gates {
			want := s.functions(i, w, authorized)
			got := s.policies(t, i, w, authorized)
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				rt.Fatalf("gate %q\n-functions +policies:\n%s", s.cfg.Gates[i].Name, diff)
			}
		}
	})
}

// TestPolicies_YearsBeyondJSON: a time that only a protobuf client can send, and
// no JSON client read, is no clock and raises no error. (The API server itself
// refuses to patch such a Node, whoever's the policy.)
func TestPolicies_YearsBeyondJSON(t *testing.T) {
	s := compile(t, cases.Config())
	for _, year := range []int{-50, 10000, 20500} {
		w := largestWrite()
		w.User = cases.Editor.UserInfo(w.Name)
		for _, node := range []*corev1.Node{w.Old, w.New} {
			node.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: time.Date(year, 6, 1, 0, 0, 0, 0, time.UTC)}}}
		}
		for _, maps := range []bool{false, true} {
			s.maps(maps)
			for _, variable := range []string{"clock", "verdict"} {
				got, err := s.update[0].Variable(t.Context(), variable, w, cases.Editor.Authorized)
				if want := map[string]string{"clock": "", "verdict": "Expired"}[variable]; err != nil || got != want {
					t.Errorf("year %d, maps %t: %s is %q, error %v, want %q", year, maps, variable, got, err, want)
				}
			}
			if _, err := s.writers[0].Evaluate(t.Context(), w, cases.Editor.Authorized); err != nil {
				t.Errorf("year %d, maps %t: %v", year, maps, err)
			}
		}
	}
}

// TestPolicies_Nameless: a caller whose authenticator gave it no name is nobody
// known, and raises no error. The request then has no field for the name at all.
func TestPolicies_Nameless(t *testing.T) {
	s := compile(t, cases.Config())
	nobody := func(string, string) bool { return false }
	for _, tc := range cases.Table() {
		if tc.As != cases.Editor {
			continue
		}
		node := cases.Blank("node-1", "0deb1067-949c-4b9d-8907-4eaeaea221b2", gen.Now)
		if tc.Stored != nil {
			tc.Stored(node, gen.Now)
		}
		w := tc.Write(node, node.Name, gen.Now)
		w.User.Username = ""
		for i := range s.cfg.Gates {
			if diff := cmp.Diff(s.functions(i, w, nobody), s.policies(t, i, w, nobody), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s, gate %q\n-functions +policies:\n%s", tc.ID, s.cfg.Gates[i].Name, diff)
			}
		}
	}
}

func (s *suite) maps(on bool) {
	for i := range s.cfg.Gates {
		s.create[i].Maps, s.update[i].Maps, s.writers[i].Maps, s.final[i].Maps = on, on, on, on
	}
}

// TestPolicies_Selectors: the node selector in CEL selects what the one in Go
// does.
func TestPolicies_Selectors(t *testing.T) {
	selectors := map[string]*metav1.LabelSelector{
		"default":        gate.DefaultNodeSelector(),
		"everything":     {},
		"in":             {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "type", Operator: metav1.LabelSelectorOpIn, Values: []string{"", "true"}}}},
		"not in":         {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "type", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"", "true"}}}},
		"exists":         {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "type", Operator: metav1.LabelSelectorOpExists}}},
		"does not exist": {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "type", Operator: metav1.LabelSelectorOpDoesNotExist}}},
		"empty value":    {MatchLabels: map[string]string{"type": ""}},
	}
	for name, selector := range selectors {
		t.Run(name, func(t *testing.T) {
			cfg := gate.Default()
			cfg.Gates[0].NodeSelector = selector
			s := compile(t, cfg)
			asGo, err := metav1.LabelSelectorAsSelector(selector)
			if err != nil {
				t.Fatal(err)
			}
			rapid.Check(t, func(rt *rapid.T) {
				w := gen.Write(cfg).Filter(func(w gate.Write) bool { return w.Subresource == "" && w.Old != nil }).Draw(rt, "write")
				w.User.Username = "anybody"
				result, err := s.update[0].Evaluate(t.Context(), w, func(string, string) bool { return false })
				if err != nil {
					rt.Fatal(err)
				}
				if want := asGo.Matches(labels.Set(w.New.Labels)); result.Matched != want || cfg.Gates[0].Governs(w.New) != want {
					rt.Errorf("labels %v: the library's selector says %t, the policy %t, Governs %t",
						w.New.Labels, want, result.Matched, cfg.Gates[0].Governs(w.New))
				}
			})
		})
	}
}

// TestPolicies_Cost: with 300 taints, 200 annotations and 50 managers every
// policy stays far below what the API server allows one evaluation.
func TestPolicies_Cost(t *testing.T) {
	cfg := cases.Config()
	s := compile(t, cfg)
	w := largestWrite()
	limits := map[string]int64{"evaluation": celconfig.PerCallLimit, "match conditions": celconfig.RuntimeCELCostBudgetMatchConditions}
	for i := range cfg.Gates {
		for _, p := range []*policyeval.Policy{s.update[i], s.writers[i], s.final[i]} {
			result, err := p.Evaluate(t.Context(), w, cases.Agent.Authorized)
			if err != nil {
				t.Fatal(err)
			}
			for part, cost := range map[string]int64{"evaluation": result.Cost, "match conditions": result.ConditionCost} {
				t.Logf("%s: %s costs %d of %d", p.Name, part, cost, limits[part])
				if cost > limits[part]/10 {
					t.Errorf("%s: %s costs %d, more than a tenth of the limit %d", p.Name, part, cost, limits[part])
				}
			}
		}
	}
}

// largestWrite is an opening of a Node with as much on it as one finds.
func largestWrite() gate.Write {
	node := cases.Blank("node-1", "0deb1067-949c-4b9d-8907-4eaeaea221b2", gen.Now)
	node.Annotations = map[string]string{}
	for i := range 200 {
		node.Annotations[fmt.Sprintf("example.com/annotation-%03d", i)] = strings.Repeat("x", 200)
	}
	for i := range 300 {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: fmt.Sprintf("example.com/taint-%03d", i), Effect: corev1.TaintEffectNoSchedule})
	}
	for range 50 {
		node.ManagedFields = append(node.ManagedFields, node.ManagedFields[0])
	}
	node.Labels[cases.StorageLabel] = "true"
	opening := cases.Case{As: cases.Agent, Verb: cases.JSON, Sent: func(n *corev1.Node, now time.Time) {
		n.Annotations[gate.HeartbeatPrefix+gate.DefaultName] = "v=1 ready=true time=" + now.Format(gate.TimeLayout) +
			" ttl=60s boot=" + cases.Boot + " node=" + string(n.UID) + " failing=" + strings.Repeat("x", 300)
	}}
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: gate.DefaultTaintKey, Effect: corev1.TaintEffectNoSchedule})
	w := opening.Write(node, node.Name, gen.Now)
	w.New.Spec.Taints = w.New.Spec.Taints[:300]
	return w
}
