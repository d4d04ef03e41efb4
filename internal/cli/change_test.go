package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

// gatesOf makes a configuration of gates, "name=taint" each, that nodegate's agent
// runs; with a "!" another's does.
func gatesOf(t *testing.T, gates ...string) *gate.Configuration {
	t.Helper()
	text := head + "gates:\n"
	for _, g := range gates {
		name, key, _ := strings.Cut(strings.TrimPrefix(g, "!"), "=")
		text += "- name: " + name + "\n  taint: {key: example.com/" + key + "}\n"
		if strings.HasPrefix(g, "!") {
			text += "  agent: {namespace: mesh, serviceAccount: mesh, podLabels: {app: mesh}}\n"
		} else {
			text += "  checks: [{file: {path: /run/x}}]\n"
		}
	}
	cfg, err := gate.ParseConfiguration([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestSteps(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after []string
		observes      bool
		want          [][]string // the gates of each step
		says          string
	}{
		"the same":                      {before: []string{"a=a"}, after: []string{"a=a"}, want: [][]string{{"a"}}},
		"one more":                      {before: []string{"a=a"}, after: []string{"a=a", "b=b"}, want: [][]string{{"a", "b"}}},
		"one less":                      {before: []string{"a=a", "b=b"}, after: []string{"b=b"}, want: [][]string{{"b"}}},
		"another taint":                 {before: []string{"a=a"}, after: []string{"a=b"}, want: [][]string{{"a"}}},
		"one for another":               {before: []string{"a=a", "c=c"}, after: []string{"b=b", "c=c"}, want: [][]string{{"b", "c", "a"}, {"b", "c"}}},
		"one takes another's taint":     {before: []string{"a=a"}, after: []string{"b=a"}, says: `gate "b" is to have the taint of gate "a"`},
		"that, observed":                {before: []string{"a=a"}, after: []string{"b=a"}, observes: true, want: [][]string{{"b"}}},
		"one of another agent":          {before: []string{"a=a"}, after: []string{"!b=b"}, says: "Add the one first"},
		"one of another agent, besides": {before: []string{"a=a"}, after: []string{"a=a", "!b=b"}, want: [][]string{{"a", "b"}}},
	} {
		p := plan{cfg: gatesOf(t, tc.after...), mode: gate.ModeEnforce}
		if tc.observes {
			p.mode = gate.ModeObserve
		}
		p.options.Config = "wanted"
		texts, err := steps(state{parsed: gatesOf(t, tc.before...), enforcing: true}, p)
		if (err != nil) != (tc.says != "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: error %v, want %q", name, err, tc.says)
		}
		var got [][]string
		for i, text := range texts {
			cfg := p.cfg
			if i < len(texts)-1 {
				if cfg, err = gate.ParseConfiguration([]byte(text)); err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
			}
			got = append(got, names(cfg))
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

func TestRetire(t *testing.T) {
	noted := []gate.Retired{{Name: "old", TaintKey: "example.com/old"}, {Name: "back", TaintKey: "example.com/back"}, {Name: "gone", TaintKey: "example.com/gone"}}
	got := retire(noted, gatesOf(t, "gone=gone", "kept=kept", "changed=x"), gatesOf(t, "back=back", "kept=kept", "changed=y"))
	want := []gate.Retired{{Name: "old", TaintKey: "example.com/old"}, {Name: "gone", TaintKey: "example.com/gone"}, {Name: "changed", TaintKey: "example.com/x"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(want, gate.ParseRetired(gate.FormatRetired(want))); diff != "" {
		t.Errorf("written and read, -want +got:\n%s", diff)
	}
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	times := added(map[string]time.Time{"a": now.Add(-time.Hour), "gone": now}, gatesOf(t, "a=a", "b=b"), gatesOf(t, "a=a", "b=b", "c=c"), now)
	if diff := cmp.Diff(map[string]time.Time{"a": now.Add(-time.Hour), "c": now}, gate.ParseAdded(gate.FormatAdded(times))); diff != "" {
		t.Errorf("added, -want +got:\n%s", diff)
	}
}

// TestBehind: agents are told from dead ones by any of their heartbeats, and those that
// are rolled by what they write.
func TestBehind(t *testing.T) {
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	node := func(name string, ages map[string]time.Duration) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
		for g, age := range ages {
			value, err := gate.Heartbeat{Ready: true, Time: now.Add(-age), TTL: time.Minute, BootID: "b", NodeUID: "u"}.Format()
			if err != nil {
				t.Fatal(err)
			}
			n.Annotations[gate.HeartbeatPrefix+g] = value
		}
		return n
	}
	const fresh, stale = 10 * time.Second, time.Hour
	nodes := []corev1.Node{
		node("no agent", nil),
		node("dead", map[string]time.Duration{"a": stale}),
		node("not rolled", map[string]time.Duration{"a": fresh}),
		node("writes both", map[string]time.Duration{"a": fresh, "b": fresh}),
		node("rolled", map[string]time.Duration{"a": 2 * fresh, "b": fresh}),
		node("rolled long ago", map[string]time.Duration{"a": stale, "b": fresh}),
	}
	both, after := gatesOf(t, "a=a", "b=b"), gatesOf(t, "b=b")
	if got := behind(both, after, nodes, now); !slices.Equal(got, []string{"not rolled"}) {
		t.Errorf("behind are %q", got)
	}
	if got := lingering(after, []gate.Retired{{Name: "a", TaintKey: "example.com/a"}}, nodes, now); !slices.Equal(got, []string{"not rolled", "writes both"}) {
		t.Errorf("lingering are %q", got)
	}
}
