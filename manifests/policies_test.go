package manifests_test

import (
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cases"
	"github.com/nodegate/nodegate/test/golden"
	"github.com/nodegate/nodegate/test/policyeval"
)

// TestPolicies_Golden: what is committed is what is rendered for the default
// gate.
func TestPolicies_Golden(t *testing.T) {
	all := func(version manifests.MutationVersion) func() ([]*unstructured.Unstructured, error) {
		return func() ([]*unstructured.Unstructured, error) { return manifests.Policies(gate.Default(), version) }
	}
	files := map[string]func() ([]*unstructured.Unstructured, error){
		"policy/default.yaml":         all(manifests.MutationV1),
		"policy/default-v1beta1.yaml": all(manifests.MutationV1beta1),
		// For clusters in which the webhook mutates.
		"policy/validation.yaml": func() ([]*unstructured.Unstructured, error) { return manifests.ValidationPolicies(gate.Default()) },
	}
	for file, render := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			objects, err := render()
			if err != nil {
				t.Fatal(err)
			}
			got, err := manifests.YAML(objects)
			if err != nil {
				t.Fatal(err)
			}
			golden.Expect(t, file, got)
		})
	}
}

// TestPolicies_NoObjectInAList: a typed object that stands in a list makes the API
// servers of Kubernetes 1.34 and 1.35 panic, and drop the request that is judged.
func TestPolicies_NoObjectInAList(t *testing.T) {
	objects, err := manifests.Policies(cases.Config(), manifests.MutationV1beta1)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, object := range objects {
		mutations, _, err := unstructured.NestedSlice(object.Object, "spec", "mutations")
		if err != nil {
			t.Fatal(err)
		}
		for _, mutation := range mutations {
			expression, _, err := unstructured.NestedString(mutation.(map[string]any), "jsonPatch", "expression")
			if err != nil {
				t.Fatal(err)
			}
			if regexp.MustCompile(`\[\s*Object\b`).MatchString(expression) {
				t.Errorf("%s has an object in a list: %s", object.GetName(), expression)
			}
			seen++
		}
	}
	if want := 2 * len(cases.Config().Gates); seen != want {
		t.Errorf("%d mutations were looked at, want %d", seen, want)
	}
}

// TestPolicies_Mode: outside enforce the bindings that arm or judge select
// nothing, and those on who may write what stay.
func TestPolicies_Mode(t *testing.T) {
	for _, mode := range gate.Modes() {
		cfg := cases.Config()
		cfg.Mode = mode
		objects, err := manifests.Policies(cfg, manifests.MutationV1)
		if err != nil {
			t.Fatal(err)
		}
		narrowed := map[string]bool{}
		for _, object := range objects {
			if spec, ok := object.Object["spec"].(map[string]any); ok && spec["policyName"] != nil {
				narrowed[object.GetName()] = spec["matchResources"] != nil
			}
		}
		off := mode != gate.ModeEnforce
		want := map[string]bool{}
		for i := range cfg.Gates {
			for _, name := range []string{"create", "update", "final"} {
				want[manifests.PolicyName(&cfg.Gates[i], name)] = off
			}
			want[manifests.PolicyName(&cfg.Gates[i], "writers")] = false
		}
		if diff := cmp.Diff(want, narrowed); diff != "" {
			t.Errorf("mode %s: bindings narrowed to nothing, -want +got:\n%s", mode, diff)
		}
	}
}

// suite is the compiled policies of a configuration.
type suite struct {
	cfg                            *gate.Configuration
	create, update, writers, final []*policyeval.Policy
}

func compile(t testing.TB, cfg *gate.Configuration) *suite {
	t.Helper()
	objects, err := manifests.Policies(cfg, manifests.MutationV1)
	if err != nil {
		t.Fatal(err)
	}
	compiled := map[string]*policyeval.Policy{}
	for _, object := range objects {
		if _, isBinding := stringAt(object.Object, "spec", "policyName"); isBinding {
			continue
		}
		if compiled[object.GetName()], err = policyeval.Compile(object); err != nil {
			t.Fatal(err)
		}
	}
	s := &suite{cfg: cfg}
	for i := range cfg.Gates {
		name := func(n string) *policyeval.Policy { return compiled[manifests.PolicyName(&cfg.Gates[i], n)] }
		s.create = append(s.create, name("create"))
		s.update = append(s.update, name("update"))
		s.writers = append(s.writers, name("writers"))
		s.final = append(s.final, name("final"))
	}
	return s
}

// decision is what both sides are compared by.
type decision struct {
	Taints  []corev1.Taint
	Verdict string
	Denied  string
	Final   bool
}

// policies runs the i-th gate's policies.
func (s *suite) policies(t testing.TB, i int, w gate.Write, authorized policyeval.Authorizer) decision {
	t.Helper()
	var d decision
	if w.Subresource == "" && w.New != nil {
		policy := s.update[i]
		if w.Old == nil {
			policy = s.create[i]
		}
		result, err := policy.Evaluate(t.Context(), w, authorized)
		if err != nil {
			t.Fatalf("%s: %v", policy.Name, err)
		}
		if result.Matched && w.Old != nil {
			if d.Verdict, err = policy.Variable(t.Context(), "verdict", w, authorized); err != nil {
				t.Fatalf("verdict: %v", err)
			}
		}
		w.New = result.Node
		d.Taints = w.New.Spec.Taints
		final, err := s.final[i].Evaluate(t.Context(), w, authorized)
		if err != nil {
			t.Fatalf("%s: %v", s.final[i].Name, err)
		}
		d.Final = final.Denied != ""
	}
	result, err := s.writers[i].Evaluate(t.Context(), w, authorized)
	if err != nil {
		t.Fatalf("%s: %v", s.writers[i].Name, err)
	}
	d.Denied = result.Denied
	return d
}

// functions runs the twin in package gate.
func (s *suite) functions(i int, w gate.Write, authorized policyeval.Authorizer) decision {
	g := &s.cfg.Gates[i]
	var d decision
	if w.Subresource == "" && w.New != nil {
		admitted := g.Admit(w, g.LatestTime(w.Old, w.New))
		d.Verdict = string(admitted.Verdict)
		w.New = w.New.DeepCopy()
		w.New.Spec.Taints = g.Apply(admitted, w.New.Spec.Taints)
		d.Taints = w.New.Spec.Taints
	}
	if rule := s.cfg.Permit(i, w, func(verb string) bool { return authorized(g.Name, verb) }); rule != "" {
		d.Denied = g.Message(rule)
	}
	return d
}

// TestPolicies_Table runs every row of the table against the policies' CEL.
func TestPolicies_Table(t *testing.T) {
	now := time.Date(2026, 11, 29, 11, 2, 53, 0, time.UTC)
	tolerating := cases.Config()
	tolerating.ToleratedPrefixes = []string{cases.ToleratedPrefix}
	suites := map[bool]*suite{false: compile(t, cases.Config()), true: compile(t, tolerating)}
	for _, tc := range cases.Table() {
		t.Run(tc.ID, func(t *testing.T) {
			s := suites[tc.Tolerating]
			node := cases.Blank("node-1", "0deb1067-949c-4b9d-8907-4eaeaea221b2", now)
			if tc.Stored != nil {
				tc.Stored(node, now)
			}
			w := tc.Write(node, node.Name, now)
			for i := range s.cfg.Gates {
				got := s.policies(t, i, w, tc.As.Authorized)
				if diff := cmp.Diff(s.functions(i, w, tc.As.Authorized), got); diff != "" {
					t.Errorf("gate %q: %s\n-functions +policies:\n%s", s.cfg.Gates[i].Name, tc.Must, diff)
				}
			}
			if got := s.policies(t, 0, w, tc.As.Authorized); got.Verdict != string(tc.Verdict) {
				t.Errorf("%s\nverdict %q, want %q", tc.Must, got.Verdict, tc.Verdict)
			}
		})
	}
}

func stringAt(content map[string]any, fields ...string) (string, bool) {
	var current any = content
	for _, field := range fields {
		m, ok := current.(map[string]any)
		if !ok {
			return "", false
		}
		current = m[field]
	}
	value, found := current.(string)
	return value, found
}
