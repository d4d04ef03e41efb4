//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/world"
)

func TestDescribe(t *testing.T) {
	g := gate.DefaultGate()
	const boot = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	heartbeat := func(value string) map[string]string { return map[string]string{g.HeartbeatAnnotation(): value} }
	for name, tc := range map[string]struct {
		node corev1.Node
		want string
	}{
		"a Node just born": {want: "boot=- heartbeat=(none) taints=[]"},
		"an armed Node whose agent says why": {
			node: corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Annotations: heartbeat(
					"v=1 ready=false time=2026-11-29T11:02:53Z ttl=60s boot=" + boot + " node=n failing=conflist seq=1")},
				Spec:   corev1.NodeSpec{Taints: g.WithTaint([]corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}})},
				Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: boot}},
			},
			want: "boot=de2d9a80 heartbeat=(ready=false boot=de2d9a80 failing=conflist) taints=[not-ready:NoSchedule nodegate.io/agent-not-ready:NoSchedule]",
		},
		"a heartbeat that is none": {
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: heartbeat("x")}},
			want: "boot=- heartbeat=(malformed) taints=[]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := describe(g, &tc.node); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestNarrator: what is not a terminal gets no colours, and a state is told once.
func TestNarrator(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n := newNarrator(file)
	n.begin("a step")
	state := world.Seen{At: time.Now(), Node: &corev1.Node{}}
	n.shows(gate.DefaultGate(), []world.Seen{state, state})
	n.measured("what was measured", 1500*time.Millisecond)
	n.holds("it holds")
	n.table()
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "\x1b") {
		t.Errorf("colours: %q", text)
	}
	for phrase, want := range map[string]int{"1. a step\n": 1, "open   boot=-": 1, "1.500 s  what was measured": 1, "= it holds": 1} {
		if got := strings.Count(string(text), phrase); got != want {
			t.Errorf("%q is told %d times, want %d, in:\n%s", phrase, got, want, text)
		}
	}
}
