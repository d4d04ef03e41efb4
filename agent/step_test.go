package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"github.com/nodegate/nodegate/gate"
)

// The tests here call the loop's steps one by one, without a watch, so that the
// agent's view of its Node is as old as a test wants it to be.

func failed(a *Agent, reason failure) int {
	return int(testutil.ToFloat64(a.metrics.writeErrors.WithLabelValues(string(reason))))
}

// lookAndAnswer shows the agent its Node as it is now and lets every check
// answer.
func (w *world) lookAndAnswer(a *Agent) {
	w.Helper()
	w.look(a)
	for _, g := range a.gates {
		for _, p := range g.probers {
			p.record(p.Check.Check(w.Context(), a.node()))
		}
	}
}

func (w *world) look(a *Agent) {
	w.Helper()
	_, turn := a.own.get()
	a.own.answer(w.node(), turn)
}

// TestStep_KeepsWhatOthersWrite: round after round another writer changes taints
// between what the agent reads and what it writes, or while it writes. Nothing of
// the other's is lost, revived or moved.
func TestStep_KeepsWhatOthersWrite(t *testing.T) {
	const rounds = 1000
	w := newWorld(t)
	w.create(thisBoot, nil)
	a := w.agent(w.options(w.identity(), &lever{}))
	clock := testclock.NewFakeClock(time.Now())
	a.clock = clock
	foreign := func(i int) corev1.Taint {
		added := metav1.NewTime(time.Unix(1_800_000_000+int64(i), 0).UTC())
		return corev1.Taint{Key: fmt.Sprintf("example.com/t%d", i), Value: fmt.Sprint(i), Effect: corev1.TaintEffectNoSchedule, TimeAdded: &added}
	}
	for round := range rounds {
		// The gate's taint stands first, in the middle or last.
		w.update(func(n *corev1.Node) {
			taints := []corev1.Taint{foreign(4 * round), foreign(4*round + 1)}
			at := round % 3
			n.Spec.Taints = append(append(taints[:at:at], armed()...), taints[at:]...)
		})
		clock.Step(2 * paceReset)
		w.lookAndAnswer(a)
		// Now the other replaces its first taint by two: before, or at the same time.
		done := make(chan []corev1.Taint, 1)
		change := func() {
			node := w.update(func(n *corev1.Node) {
				rest := n.Spec.Taints[:0:0]
				for _, taint := range n.Spec.Taints {
					if taint.Key != foreign(4*round).Key {
						rest = append(rest, taint)
					}
				}
				n.Spec.Taints = append([]corev1.Taint{foreign(4*round + 2), foreign(4*round + 3)}, rest...)
			})
			done <- gate.DefaultGate().WithoutTaint(node.Spec.Taints)
		}
		if round%2 == 0 {
			change()
		} else {
			go change()
		}
		for !isOpen(w.node()) {
			a.step(t.Context())
			w.look(a)
			clock.Step(time.Second)
		}
		want := <-done
		if diff := cmp.Diff(want, gate.DefaultGate().WithoutTaint(w.node().Spec.Taints)); diff != "" {
			t.Fatalf("round %d: foreign taints changed (-want +got):\n%s", round, diff)
		}
		if node := w.node(); !isOpen(node) || !saysReady(node, true) {
			t.Fatalf("round %d: not open and ready: %v", round, node)
		}
	}
	if stale := failed(a, failureStale); stale < rounds/2 {
		t.Errorf("only %d writes of %d rounds met a changed Node: the test tests little", stale, rounds)
	}
}

// TestStep_ALateWriteOpensNothing: a write that opens is held up on its way, and
// arrives when the agent has said otherwise, when another agent of this boot has
// spoken, in another boot, or at another Node of the name.
func TestStep_ALateWriteOpensNothing(t *testing.T) {
	for name, meanwhile := range map[string]func(w *world, a *Agent, check *lever){
		"the agent said otherwise": func(w *world, a *Agent, check *lever) {
			check.set(false)
			for range 2 { // the check's dwell is over with the second
				w.lookAndAnswer(a)
				a.clock.(*testclock.FakeClock).Step(time.Minute)
			}
			a.step(w.Context())
		},
		"another agent spoke": func(w *world, _ *Agent, _ *lever) {
			check := &lever{}
			check.set(false)
			o := w.options(w.identity(), check)
			o.PodUID = "another"
			next := w.agent(o)
			w.lookAndAnswer(next)
			next.step(w.Context())
		},
		"a reboot": func(w *world, _ *Agent, _ *lever) { w.boots(otherBoot) },
		"another Node": func(w *world, _ *Agent, _ *lever) {
			w.delete()
			w.create(thisBoot, nil, armed()...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(thisBoot, nil, armed()...)
			check := &lever{}
			a := w.agent(w.options(w.identity(), check))
			a.clock = testclock.NewFakeClock(time.Now())
			check.set(false)
			w.lookAndAnswer(a)
			a.step(t.Context()) // it says no at first
			check.set(true)
			w.lookAndAnswer(a)
			slow := &holdUp{nodeClient: a.nodes}
			a.nodes = slow
			a.step(t.Context())
			if len(slow.held) == 0 || !isOpen(w.arrives(slow, true)) {
				t.Fatal("the write would not have opened: the test tests nothing")
			}
			slow.let = true
			meanwhile(w, a, check)
			if node := w.arrives(slow, false); node != nil {
				t.Errorf("the late write was accepted: taints %v, annotations %v", node.Spec.Taints, node.Annotations)
			}
			if isOpen(w.node()) {
				t.Error("the Node is open")
			}
		})
	}
}

// holdUp keeps the writes that are sent, as a network that hangs, until it lets
// them through.
type holdUp struct {
	nodeClient
	held [][]byte
	let  bool
}

func (h *holdUp) Patch(ctx context.Context, name string, patch types.PatchType, data []byte, options metav1.PatchOptions, sub ...string) (*corev1.Node, error) {
	if h.let {
		return h.nodeClient.Patch(ctx, name, patch, data, options, sub...)
	}
	h.held = append(h.held, data)
	return nil, context.DeadlineExceeded
}

// arrives has the first write that was held up arrive, and returns what becomes of
// the Node; nil if it is refused.
func (w *world) arrives(h *holdUp, dry bool) *corev1.Node {
	w.Helper()
	options := metav1.PatchOptions{FieldManager: gate.ManagerAgent}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	node, err := h.nodeClient.Patch(w.Context(), w.name, types.JSONPatchType, h.held[0], options)
	if err != nil && classify(err) != failureStale {
		w.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return node
}

// TestStep_VanishedTaint: somebody else removed it between read and write.
func TestStep_VanishedTaint(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, nil, append(foreignTaints(), armed()...)...)
	a := w.agent(w.options(w.identity(), &lever{}))
	w.lookAndAnswer(a)
	w.update(func(n *corev1.Node) { n.Spec.Taints = foreignTaints() })
	if wait := a.step(t.Context()); wait < minInterval {
		t.Errorf("not done: wants to look again in %s", wait)
	}
	node := w.node()
	if diff := cmp.Diff(foreignTaints(), node.Spec.Taints); diff != "" || !saysReady(node, true) {
		t.Errorf("heartbeat %v, foreign taints (-want +got):\n%s", node.Annotations, diff)
	}
}

// TestStep_OneWrite: after a write the agent waits for its next heartbeat, though
// no watch has shown it its own write.
func TestStep_OneWrite(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, nil, armed()...)
	a := w.agent(w.options(w.identity(), &lever{}))
	w.lookAndAnswer(a)
	old, _ := a.own.get()
	for range 3 {
		if wait := a.step(t.Context()); wait < minInterval {
			t.Errorf("wants to look again in %s", wait)
		}
		a.own.event(old) // a watch that lags
	}
	if a.loop.sequence != 1 {
		t.Errorf("%d writes, want one", a.loop.sequence)
	}
}

// TestStep_AdmissionPutsTheTaintBack: a foreign policy adds the taint to every
// write. The agent says so and slows down.
func TestStep_AdmissionPutsTheTaintBack(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, nil, armed()...)
	a := w.agent(w.options(w.identity(), &lever{}))
	clock := testclock.NewFakeClock(time.Now())
	a.clock = clock
	a.nodes = putBack{node: w.node()}
	w.lookAndAnswer(a)
	for begin := clock.Now(); clock.Since(begin) < 2*time.Minute; clock.Step(50 * time.Millisecond) {
		a.step(t.Context())
	}
	returned := testutil.ToFloat64(a.metrics.openings.WithLabelValues("agent", resultPutBack))
	if returned < 5 || returned > 15 {
		t.Errorf("%v removals in 2 minutes, want a handful", returned)
	}
	if opened := testutil.ToFloat64(a.metrics.openings.WithLabelValues("agent", resultOpened)); opened != 0 {
		t.Errorf("%v removals counted as opened", opened)
	}
	if ok, reasons := a.Ready(); !ok || !strings.Contains(reasons, "taint: put back by admission") {
		t.Errorf("the endpoint says %t:\n%s", ok, reasons)
	}
}

// TestStep_ErrorsAreRetried: whatever the answer, the write is made in the end.
func TestStep_ErrorsAreRetried(t *testing.T) {
	for reason, err := range map[failure]error{
		failureStale:       apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "n", errors.New("changed")),
		failureServer:      apierrors.NewInternalError(errors.New("etcd")),
		failureForbidden:   apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n", errors.New("RBAC")),
		failureDenied:      apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n", errors.New("policy p denied request: no")),
		failureUnreachable: errors.New("connection refused"),
	} {
		t.Run(string(reason), func(t *testing.T) {
			w := newWorld(t)
			w.create(thisBoot, nil, armed()...)
			a := w.agent(w.options(w.identity(), &lever{}))
			clock := testclock.NewFakeClock(time.Now())
			a.clock = clock
			a.nodes = &faulty{nodeClient: a.nodes, err: err, times: 7}
			w.lookAndAnswer(a)
			for begin := clock.Now(); !isOpen(w.node()) && clock.Since(begin) < time.Hour; {
				clock.Step(max(a.step(t.Context()), time.Millisecond))
			}
			if !isOpen(w.node()) || failed(a, reason) != 7 {
				t.Errorf("open: %t, after %d failures, want 7", isOpen(w.node()), failed(a, reason))
			}
		})
	}
}

// putBack answers as an API server whose admission adds the taint to every write.
type putBack struct {
	nodeClient
	node *corev1.Node
}

func (p putBack) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.Node, error) {
	node := p.node.DeepCopy()
	hb := gate.Heartbeat{Ready: true, Time: time.Now().UTC().Truncate(time.Second), TTL: time.Minute, BootID: thisBoot, NodeUID: node.UID}
	value, err := hb.Format()
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, gate.DefaultGate().HeartbeatAnnotation(), value)
	return node, err
}

// faulty fails some times.
type faulty struct {
	nodeClient
	err   error
	times int
}

func (f *faulty) Patch(ctx context.Context, name string, patch types.PatchType, data []byte, options metav1.PatchOptions, sub ...string) (*corev1.Node, error) {
	if f.times > 0 {
		f.times--
		return nil, f.err
	}
	return f.nodeClient.Patch(ctx, name, patch, data, options, sub...)
}
