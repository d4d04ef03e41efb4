package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

// TestSteps_NobodyAnswers: a change that would leave nodegate-cni in nodes' lists with
// no agent to answer it is refused in every mode.
func TestSteps_NobodyAnswers(t *testing.T) {
	const (
		answers  = "cni: {}\n"
		gates    = "gates:\n- {name: a, taint: {key: example.com/a}, checks: [{file: {path: /run/x}}, {name: hold, conflist: {pluginType: nodegate-cni}}]}\n"
		switched = "gates:\n- {name: a, taint: {key: example.com/a}, checks: [{file: {path: /run/x}}, {name: hold, conflist: {pluginType: nodegate-cni, disabled: true}}]}\n"
		without  = "gates:\n- {name: a, taint: {key: example.com/a}, checks: [{file: {path: /run/x}}]}\n"
		others   = "gates:\n- {name: a, taint: {key: example.com/a}, agent: {namespace: mesh, serviceAccount: mesh, podLabels: {app: mesh}}}\n"
	)
	narrow := strings.Replace(gates, "checks:", "nodeSelector: {matchLabels: {pool: b}}, checks:", 1)
	nodes := []corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{corev1.LabelOSStable: "linux", "pool": "a"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "node-b", Labels: map[string]string{corev1.LabelOSStable: "linux", "pool": "b"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "exempt", Labels: map[string]string{corev1.LabelOSStable: "linux", gate.ExemptLabel: "true"}}},
	}
	for name, tc := range map[string]struct {
		before, after string
		nodes         []corev1.Node
		want          string
	}{
		"the same":                       {answers + gates, answers + gates, nodes, ""},
		"cni and check go":               {answers + gates, without, nodes, "chained on node-a, node-b, and no pod would start there"},
		"they go, nothing is there":      {answers + gates, without, nil, ""},
		"the check is off by now":        {answers + switched, without, nodes, ""},
		"the check goes off":             {answers + gates, answers + switched, nodes, ""},
		"the check goes, the agent not":  {answers + gates, answers + without, nodes, ""},
		"it was never chained":           {answers + without, without, nodes, ""},
		"the agent goes":                 {answers + gates, answers + others, nodes, "chained on node-a, node-b, and"},
		"nodes are governed no more":     {answers + gates, answers + narrow, nodes, "chained on node-a, and"},
		"more nodes are governed by now": {answers + narrow, answers + gates, nodes, ""},
	} {
		for _, mode := range []gate.Mode{gate.ModeEnforce, gate.ModeObserve} {
			before, err := gate.ParseConfiguration([]byte(head + tc.before))
			if err != nil {
				t.Fatal(err)
			}
			after, err := gate.ParseConfiguration([]byte(head + tc.after))
			if err != nil {
				t.Fatal(err)
			}
			_, err = steps(state{parsed: before, nodes: tc.nodes}, plan{cfg: after, mode: mode})
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s, %s: error %v, want %q", name, mode, err, tc.want)
			}
		}
	}
}
