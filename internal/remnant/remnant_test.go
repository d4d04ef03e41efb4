package remnant

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// TestOn: what is left is told from what is not, and from what is somebody else's.
func TestOn(t *testing.T) {
	live, blue := *gate.DefaultGate(), *gate.DefaultGate()
	live.Taint.Key = "example.com/agent"
	blue.Name, blue.Taint.Key = "blue", "example.com/blue"
	blue.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"pool": "blue"}}
	known := Known{
		Config:  &gate.Configuration{Gates: []gate.Gate{live, blue}},
		Retired: []gate.Retired{{Name: "old", TaintKey: "example.com/old"}, {Name: "was", TaintKey: "example.com/blue"}},
	}
	heartbeat := func(at time.Time) string {
		value, err := gate.Heartbeat{Ready: true, Time: at, TTL: time.Minute, BootID: "b", NodeUID: "u"}.Format()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	linux := map[string]string{corev1.LabelOSStable: "linux"}
	taint := func(key string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Effect: effect}
	}
	for name, tc := range map[string]struct {
		labels, annotations map[string]string
		taints              []corev1.Taint
		want                Remnants
	}{
		"what a gate governs": {
			labels: linux, taints: []corev1.Taint{taint("example.com/agent", corev1.TaintEffectNoSchedule)},
			annotations: map[string]string{"heartbeat.nodegate.io/agent": heartbeat(now.Add(-time.Hour)), "bypass.nodegate.io/agent": "x"},
		},
		"of a gate that governs it no more": {
			taints:      []corev1.Taint{taint("example.com/agent", corev1.TaintEffectNoSchedule)},
			annotations: map[string]string{"heartbeat.nodegate.io/agent": heartbeat(now.Add(-time.Hour)), "bypass.nodegate.io/agent": "x"},
			want:        Remnants{Taints: []Taint{{"example.com/agent", "agent"}}, Heartbeats: []string{"agent"}, Bypasses: []string{"agent"}},
		},
		"its agent goes on writing": {
			annotations: map[string]string{"heartbeat.nodegate.io/blue": heartbeat(now)}, labels: linux,
		},
		"something that is no heartbeat": {
			annotations: map[string]string{"heartbeat.nodegate.io/blue": "x"}, labels: linux,
			want: Remnants{Heartbeats: []string{"blue"}},
		},
		"of a gate that is not configured": {
			labels: linux, taints: []corev1.Taint{taint("example.com/old", corev1.TaintEffectNoSchedule)},
			annotations: map[string]string{"heartbeat.nodegate.io/old": heartbeat(now), "bypass.nodegate.io/old": "x"},
			want:        Remnants{Taints: []Taint{{"example.com/old", "old"}}, Heartbeats: []string{"old"}, Bypasses: []string{"old"}},
		},
		"a taint that another gate has now": {
			labels: map[string]string{"pool": "blue"}, taints: []corev1.Taint{taint("example.com/blue", corev1.TaintEffectNoSchedule)},
		},
		"nodegate's own domain": {
			taints: []corev1.Taint{taint(gate.DefaultTaintKey, corev1.TaintEffectNoSchedule)},
			want:   Remnants{Taints: []Taint{{gate.DefaultTaintKey, ""}}},
		},
		"somebody else's": {
			taints: []corev1.Taint{
				taint("example.com/other", corev1.TaintEffectNoSchedule), taint("example.com/old", corev1.TaintEffectNoExecute),
				taint(gate.DefaultTaintKey, corev1.TaintEffectPreferNoSchedule), taint("example.com/agent", corev1.TaintEffectNoExecute),
				taint("nodegate.io.example.com/x", corev1.TaintEffectNoSchedule),
			},
			annotations: map[string]string{"example.com/heartbeat.nodegate.io": "x", gate.ExemptLabel: "true"},
		},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels, Annotations: tc.annotations}, Spec: corev1.NodeSpec{Taints: tc.taints}}
		got := known.On(node, now)
		if diff := cmp.Diff(tc.want, got); diff != "" || got.None() != cmp.Equal(tc.want, Remnants{}) {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}
