package behaviour

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/gate"
)

// TestUntainter_NeverGivesUp: something removes the taint as soon as it sees it,
// for ever. The Node stays closed, and what the untainter writes changes nothing,
// so that nobody else is woken.
func TestUntainter_NeverGivesUp(t *testing.T) {
	inEachForm(t, func(t *testing.T, e *environment) {
		t.Run("one that retries", e.retries)
		t.Run("one that follows a watch", e.followsAWatch)
		t.Run("two in turns", e.inTurns)
	})
}

// untainter removes the gate's taint and leaves other taints there. It returns the
// Node as the API server answers.
type untainter func(t *testing.T, e *environment, client kubernetes.Interface, node *corev1.Node) *corev1.Node

func byPatch(t *testing.T, e *environment, client kubernetes.Interface, node *corev1.Node) *corev1.Node {
	t.Helper()
	var rest any // null, not an empty list: as it is without taints
	if left := e.gate.WithoutTaint(node.Spec.Taints); len(left) > 0 {
		rest = left
	}
	return e.patch(t, client, node.Name, map[string]any{"spec": map[string]any{"taints": rest}})
}

func byReplacement(t *testing.T, e *environment, client kubernetes.Interface, node *corev1.Node) *corev1.Node {
	t.Helper()
	sent := node.DeepCopy()
	sent.Spec.Taints = e.gate.WithoutTaint(node.Spec.Taints)
	answer, err := client.CoreV1().Nodes().Update(t.Context(), sent, metav1.UpdateOptions{})
	if err != nil {
		t.Fatalf("replacing node: %v", err)
	}
	return answer
}

func foreignTaint() corev1.Taint {
	return corev1.Taint{Key: "example.com/other", Effect: corev1.TaintEffectNoExecute}
}

// victim is a Node and how its taint is removed.
type victim struct {
	*corev1.Node
	remove untainter
}

// victims are Nodes in every state in which admission keeps the taint, once for
// each way to remove it.
func (e *environment) victims(t *testing.T) []victim {
	t.Helper()
	long := time.Now().Add(-time.Hour)
	states := map[string]func(*corev1.Node) map[string]any{
		"absent":  func(*corev1.Node) map[string]any { return nil },
		"expired": func(n *corev1.Node) map[string]any { return e.heartbeat(t, n, long) },
		"over":    func(*corev1.Node) map[string]any { return e.bypass(t, long) },
	}
	var all []victim
	for state, annotations := range states {
		for way, remove := range map[string]untainter{"patch": byPatch, "replacement": byReplacement} {
			for beside, taints := range map[string][]corev1.Taint{"alone": nil, "beside": {foreignTaint()}} {
				node := e.create(t, state+"-"+way+"-"+beside, taints...)
				if merge := annotations(node); merge != nil {
					node = e.patch(t, e.admin, node.Name, merge)
				}
				all = append(all, victim{node, remove})
			}
		}
	}
	return all
}

// retries: the first removals may be written, for they take from whoever set the
// taints the ownership of them. All later ones change nothing, whatever the time.
func (e *environment) retries(t *testing.T) {
	const settling, rounds = 2, 100
	const seconds = 3 // the clocks of stamps have moved on by then
	untainter, victims := e.client(t, "untainter"), e.victims(t)
	before, attempts := e.kept(t), 0
	var settled time.Time
	for round := 0; round < settling+rounds || time.Since(settled) < seconds*time.Second; round++ {
		if round == settling {
			settled = time.Now()
		}
		for i, v := range victims {
			after := v.remove(t, e, untainter, v.Node)
			attempts++
			if !e.gate.Armed(after) {
				t.Fatalf("node %s: open after removal %d", v.Name, round)
			}
			if round >= settling && after.ResourceVersion != v.ResourceVersion {
				t.Fatalf("node %s: removal %d was a write:\n%s", v.Name, round, cmp.Diff(v.Node, after))
			}
			victims[i].Node = after
		}
	}
	t.Logf("%d removals", attempts)
	e.expectKept(t, before, attempts)
}

// kept is how often the webhook says that it has put the taint back.
func (e *environment) kept(t *testing.T) map[string]int {
	t.Helper()
	if e.webhook == nil {
		return nil
	}
	kept := map[string]int{}
	for labels, count := range counts(t, e.webhook.Metrics.Register, "nodegate_webhook_decisions_total") {
		for _, verdict := range []gate.Verdict{gate.Absent, gate.Expired} {
			if labels == fmt.Sprintf("/%s/%s/%s", gate.CauseKept, e.gate.Name, verdict) {
				kept[string(verdict)] = count
			}
		}
	}
	return kept
}

// expectKept: each attempt was counted, by the heartbeat's verdict. Of three states
// one has an expired heartbeat, and in two there is none.
func (e *environment) expectKept(t *testing.T, before map[string]int, attempts int) {
	t.Helper()
	if e.webhook == nil {
		return
	}
	got := e.kept(t)
	for verdict, count := range before {
		got[verdict] -= count
	}
	want := map[string]int{string(gate.Absent): attempts / 3 * 2, string(gate.Expired): attempts / 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("put back, as counted, -want +got:\n%s", diff)
	}
}

// followsAWatch: every event that shows the taint makes the untainter remove it. An
// attempt that changes nothing makes no event, so it comes to rest until somebody
// else writes. Then one attempt may be written, if that write was in another second:
// the API server keeps managers in the order in which they wrote.
func (e *environment) followsAWatch(t *testing.T) {
	const others, settling = 100, 2
	node := e.create(t, "followed", foreignTaint())
	events := e.watch(t, node)
	untainter, attempts := e.client(t, "untainter"), 0
	for i := range others {
		node = e.patch(t, e.admin, node.Name, map[string]any{"metadata": map[string]any{"labels": map[string]string{"round": fmt.Sprint(i)}}})
		for seen := ""; seen != node.ResourceVersion; attempts++ {
			event := next(t, events)
			seen = event.ResourceVersion
			if !e.gate.Armed(event) {
				t.Fatalf("event %d shows the node open", attempts)
			}
			// What it removes rests on what it saw last, not on what is stored.
			if after := byPatch(t, e, untainter, event); after.ResourceVersion != node.ResourceVersion {
				node = after
			}
		}
	}
	t.Logf("%d writes by others, %d removals", others, attempts)
	if attempts > 2*others+settling {
		t.Errorf("%d writes by others have led to %d removals: the untainter wakes itself", others, attempts)
	}
}

// watch delivers every state of a Node after the given one.
func (e *environment) watch(t *testing.T, node *corev1.Node) <-chan watch.Event {
	t.Helper()
	events, err := e.admin.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, node.Name).String(),
		ResourceVersion: node.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(events.Stop)
	return events.ResultChan()
}

func next(t *testing.T, events <-chan watch.Event) *corev1.Node {
	t.Helper()
	select {
	case event := <-events:
		node, ok := event.Object.(*corev1.Node)
		if !ok {
			t.Fatalf("the watch delivers %v", event)
		}
		return node
	case <-time.After(time.Minute):
		t.Fatal("the watch delivers nothing")
	}
	return nil
}

// inTurns: two untainters that write the same list take the ownership of it from
// each other, which the API server records. That is one write for each attempt, and
// none of ours besides.
func (e *environment) inTurns(t *testing.T) {
	const attempts = 300
	node := e.create(t, "in-turns", foreignTaint())
	events := e.watch(t, node)
	clients := []kubernetes.Interface{e.client(t, "one"), e.client(t, "other")}
	writes := 0
	for i := range attempts {
		after := byPatch(t, e, clients[i%2], node)
		if !e.gate.Armed(after) {
			t.Fatalf("open after removal %d", i)
		}
		if after.ResourceVersion != node.ResourceVersion {
			writes++
			if seen := next(t, events); seen.ResourceVersion != after.ResourceVersion {
				t.Fatalf("removal %d was not the only write", i)
			}
		}
		node = after
	}
	t.Logf("%d removals, %d writes", attempts, writes)
}
