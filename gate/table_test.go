package gate_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cases"
)

// TestTable runs every row against the functions. The rows are documented where
// they stand.
func TestTable(t *testing.T) {
	now := time.Date(2026, 11, 29, 11, 2, 53, 0, time.UTC)
	for _, tc := range cases.Table() {
		t.Run(tc.ID, func(t *testing.T) {
			cfg := cases.Config()
			if tc.Tolerating {
				cfg.ToleratedPrefixes = []string{cases.ToleratedPrefix}
			}
			node := cases.Blank("node-1", "0deb1067-949c-4b9d-8907-4eaeaea221b2", now)
			if tc.Stored != nil {
				tc.Stored(node, now)
			}
			w := tc.Write(node, node.Name, now)
			got := run(cfg, &tc, w, cfg.Gates[0].LatestTime(w.Old, w.New))
			if diff := cmp.Diff(want(&tc), got); diff != "" {
				t.Errorf("%s\n-want +got:\n%s", tc.Must, diff)
			}
			clocked := want(&tc)
			if tc.Clocked != "" {
				clocked.Outcome = tc.Clocked
			}
			if got := run(cfg, &tc, w, now); got.Outcome != clocked.Outcome {
				t.Errorf("%s\nwith a clock: %s, want %s", tc.Must, got.Outcome, clocked.Outcome)
			}
		})
	}
}

// result is what a row fixes.
type result struct {
	Outcome, Storage cases.Outcome
	Verdict          gate.Verdict
	Rule             gate.Rule
	StorageRule      gate.Rule
}

func want(tc *cases.Case) result {
	r := result{Outcome: tc.Want, Storage: tc.Storage, Verdict: tc.Verdict, Rule: tc.Rule, StorageRule: tc.StorageRule}
	if tc.ByKubernetes {
		r.Outcome = cases.Untouched
	}
	if r.Storage == "" {
		r.Storage = cases.Untouched
	}
	return r
}

// run does what an API server does: every gate mutates, in turn, then every gate
// validates the result.
func run(cfg *gate.Configuration, tc *cases.Case, w gate.Write, now time.Time) result {
	var r result
	r.Outcome, r.Verdict = mutate(&cfg.Gates[0], tc, &w, now)
	r.Storage, _ = mutate(&cfg.Gates[1], tc, &w, now)
	permit := func(i int) gate.Rule {
		return cfg.Permit(i, w, func(verb string) bool { return tc.As.Authorized(cfg.Gates[i].Name, verb) })
	}
	if r.Rule, r.StorageRule = permit(0), permit(1); r.Rule != "" || r.StorageRule != "" {
		r.Outcome = cases.Denied
	}
	return r
}

func mutate(g *gate.Gate, tc *cases.Case, w *gate.Write, now time.Time) (cases.Outcome, gate.Verdict) {
	decision := g.Admit(*w, now)
	if !decision.Arm || (tc.Mode != "" && tc.Mode != gate.ModeEnforce) {
		return cases.Untouched, decision.Verdict
	}
	armed := w.New.DeepCopy()
	armed.Spec.Taints = g.Apply(decision, append([]corev1.Taint(nil), w.New.Spec.Taints...))
	w.New = armed
	return cases.Armed, decision.Verdict
}
