package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

func TestNodeConditionCheck(t *testing.T) {
	// The boot began ten minutes ago.
	boot := bootSpan{uptime: 10 * time.Minute, local: testNow(), api: testNow()}
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(testNow().Add(-d)) }
	condition := func(status corev1.ConditionStatus, heartbeat, transition metav1.Time) corev1.NodeCondition {
		return corev1.NodeCondition{Type: "NetworkUnavailable", Status: status, Reason: "R", Message: "m",
			LastHeartbeatTime: heartbeat, LastTransitionTime: transition}
	}
	const stale = "condition NetworkUnavailable is False, but was last reported at "
	for name, tc := range map[string]struct {
		conditions []corev1.NodeCondition
		boot       bootSpan
		want       string
	}{
		"reported in this boot":              {[]corev1.NodeCondition{condition("False", ago(time.Minute), ago(time.Hour))}, boot, ""},
		"turned in this boot":                {[]corev1.NodeCondition{condition("False", metav1.Time{}, ago(time.Minute))}, boot, ""},
		"as old as the boot":                 {[]corev1.NodeCondition{condition("False", ago(10*time.Minute), metav1.Time{})}, boot, ""},
		"last reported before it":            {[]corev1.NodeCondition{condition("False", ago(10*time.Minute+time.Second), ago(time.Hour))}, boot, stale + "2026-11-29T10:52:52Z, which is not in this boot"},
		"by a clock that was ahead":          {[]corev1.NodeCondition{condition("False", ago(-24*time.Hour), ago(time.Hour))}, boot, stale + "2026-11-30T11:02:53Z"},
		"by a clock that was never set":      {[]corev1.NodeCondition{condition("False", metav1.Unix(60, 0), metav1.Unix(60, 0))}, boot, stale + "1970-01-01T00:01:00Z"},
		"no time at all":                     {[]corev1.NodeCondition{condition("False", metav1.Time{}, metav1.Time{})}, boot, stale},
		"the other status":                   {[]corev1.NodeCondition{condition("True", ago(0), ago(0))}, boot, "condition NetworkUnavailable is True, not False (R: m)"},
		"not known":                          {[]corev1.NodeCondition{condition("Unknown", ago(0), ago(0))}, boot, "condition NetworkUnavailable is Unknown, not False (R: m)"},
		"another condition":                  {[]corev1.NodeCondition{{Type: corev1.NodeReady, Status: "False", LastHeartbeatTime: ago(0)}}, boot, "the Node has no condition NetworkUnavailable"},
		"no conditions":                      {nil, boot, "the Node has no condition NetworkUnavailable"},
		"the node's clock is ahead":          {[]corev1.NodeCondition{condition("False", ago(time.Hour), ago(time.Hour))}, bootSpan{10 * time.Minute, testNow().Add(-time.Hour), testNow()}, stale},
		"the node's clock is behind":         {[]corev1.NodeCondition{condition("False", ago(time.Hour), ago(time.Hour))}, bootSpan{10 * time.Minute, testNow(), testNow().Add(-time.Hour)}, stale},
		"clocks differ by less than the age": {[]corev1.NodeCondition{condition("False", ago(3*time.Minute), ago(time.Hour))}, bootSpan{10 * time.Minute, testNow().Add(2 * time.Minute), testNow()}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			check := newNodeConditionCheck(gate.NodeConditionCheck{Type: "NetworkUnavailable", Status: corev1.ConditionFalse})
			check.boot = func() (bootSpan, error) { return tc.boot, nil }
			expectAnswer(t, check.Check(t.Context(), &corev1.Node{Status: corev1.NodeStatus{Conditions: tc.conditions}}), tc.want)
		})
	}
	check := newNodeConditionCheck(gate.NodeConditionCheck{Type: corev1.NodeReady, Status: corev1.ConditionTrue})
	if err := check.Check(t.Context(), nil); !errors.Is(err, ErrNoNode) {
		t.Errorf("without a Node: %v", err)
	}
	check.boot = func() (bootSpan, error) { return bootSpan{}, errDown }
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: "True", LastHeartbeatTime: ago(0)}}}}
	expectAnswer(t, check.Check(t.Context(), node), "down")
}

func TestReadUptime(t *testing.T) {
	for content, want := range map[string]time.Duration{
		"350735.47 234388.90\n": 350735470 * time.Millisecond,
		"0.02 0.01\n":           20 * time.Millisecond,
		"":                      -1, "x 1": -1, "-5 0": -1, "1e300 0": -1,
	} {
		path := filepath.Join(t.TempDir(), "uptime")
		write(t, path, content)
		if got, err := readUptime(path); (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %s, error %v", content, got, err)
		}
	}
	if _, err := readUptime("/nowhere"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
