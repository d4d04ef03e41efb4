package behaviour

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// TestBypass: a person opens the gate of a node for a while.
func TestBypass(t *testing.T) {
	inEachForm(t, func(t *testing.T, e *environment) {
		e.install(t)
		t.Run("opens, and anybody may", e.bypassOpens)
		t.Run("ends by itself", e.bypassEnds)
		t.Run("ends when it is cleared", e.bypassCleared)
	})
}

func (e *environment) expectBypassed(t *testing.T, node *corev1.Node) gate.Bypass {
	t.Helper()
	if verdict := gate.Judge(node, e.gate, time.Now()); e.gate.Armed(node) || verdict != gate.Bypassed {
		t.Errorf("node %s is armed: %t, its verdict %s", node.Name, e.gate.Armed(node), verdict)
	}
	bypass, err := gate.ParseBypass(node.Annotations[e.gate.BypassAnnotation()])
	if err != nil {
		t.Error(err)
	}
	return bypass
}

func (e *environment) stored(t *testing.T, name string) *corev1.Node {
	t.Helper()
	return e.await(t, name, "there", func(*corev1.Node) bool { return true })
}

// bypassOpens: for as long as there is, and whoever closes the gate meanwhile.
func (e *environment) bypassOpens(t *testing.T) {
	e.create(t, "opened", foreignTaint())
	out := e.nodegate(t, "bypass", "opened", "--for=24h", "--reason=no image: who = what?")
	if !strings.Contains(out, "Node opened: gate agent is bypassed until 20") {
		t.Errorf("it says %q", out)
	}
	node := e.stored(t, "opened")
	bypass := e.expectBypassed(t, node)
	if left := time.Until(bypass.Until); left < 23*time.Hour || left > 24*time.Hour || bypass.Reason != "no image: who = what?" {
		t.Errorf("bypass %+v", bypass)
	}
	if !slices.Contains(node.Spec.Taints, foreignTaint()) {
		t.Errorf("taints %v, the foreign one is lost", node.Spec.Taints)
	}
	armed := e.patch(t, e.admin, "opened", map[string]any{"spec": map[string]any{"taints": e.gate.WithTaint(nil)}})
	if !e.gate.Armed(armed) {
		t.Fatal("nobody can close the gate")
	}
	e.expectBypassed(t, e.patch(t, e.client(t, "anybody"), "opened", map[string]any{"spec": map[string]any{"taints": nil}}))
}

// bypassEnds: at its time, by the guard's timer; nothing else writes the Node.
func (e *environment) bypassEnds(t *testing.T) {
	e.create(t, "ends")
	e.nodegate(t, "bypass", "ends", "--for=10s", "--reason=test")
	until := e.expectBypassed(t, e.stored(t, "ends")).Until
	e.await(t, "ends", "closed", func(node *corev1.Node) bool {
		early := time.Now().Before(until.Add(-time.Second))
		if early && e.gate.Armed(node) {
			t.Errorf("closed before %s", until)
		}
		return e.gate.Armed(node)
	})
	t.Logf("closed %s after the bypass was over", time.Since(until))
}

// bypassCleared: the gate is closed in the same write, where its agent does not
// serve.
func (e *environment) bypassCleared(t *testing.T) {
	e.create(t, "cleared")
	e.nodegate(t, "bypass", "cleared", "--for=1h", "--reason=test")
	if out := e.nodegate(t, "bypass", "cleared", "--clear"); !strings.Contains(out, "the gate is closed") {
		t.Errorf("it says %q", out)
	}
	node := e.stored(t, "cleared")
	if _, left := node.Annotations[e.gate.BypassAnnotation()]; left || !e.gate.Armed(node) {
		t.Errorf("annotations %v, taints %v", node.Annotations, node.Spec.Taints)
	}
	if out := e.nodegate(t, "bypass", "cleared", "--clear"); out != "" {
		t.Errorf("with no bypass left it says %q", out)
	}
	e.patch(t, e.admin, "cleared", e.heartbeat(t, node, time.Now()))
	e.nodegate(t, "bypass", "cleared", "--for=1h", "--reason=test")
	if out := e.nodegate(t, "bypass", "cleared", "--clear"); !strings.Contains(out, "the gate is open") {
		t.Errorf("with a fresh heartbeat it says %q", out)
	}
}
