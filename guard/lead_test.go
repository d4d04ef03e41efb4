package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/notice"
)

// book is a recorder that keeps what is told.
type book struct {
	mu    sync.Mutex
	lines []string
}

func (b *book) Eventf(regarding, _ runtime.Object, kind, reason, action, note string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := regarding.(metav1.Object).GetName()
	b.lines = append(b.lines, strings.Join([]string{name, kind, reason, action, fmt.Sprintf(note, args...)}, "|"))
}

// told returns what is queued, as a recorder would get it.
func (b *bench) told() []string {
	record := &book{}
	for {
		select {
		case what := <-b.teller.queue:
			record.Eventf(what.regarding, nil, what.kind, what.reason, what.action, "%s", what.note)
		default:
			return record.lines
		}
	}
}

func (b *bench) tells() { b.teller = newTeller(nil, b.Metrics) }

// copies creates Nodes like the first, under other names.
func (b *bench) copies(t *testing.T, count int, change func(*input)) {
	t.Helper()
	for i := range count {
		in := newInput(change)
		in.node.Name, in.node.UID = fmt.Sprintf("copy-%d", i), types.UID(fmt.Sprintf("copy-%d", i))
		heartbeat(func(hb *gate.Heartbeat) { hb.NodeUID = in.node.UID })(&in)
		if err := b.Client.Create(t.Context(), in.node); err != nil {
			t.Fatal(err)
		}
	}
}

// lookAtAll looks at every Node and returns how many are armed then.
func (b *bench) lookAtAll(t *testing.T) (armed int) {
	t.Helper()
	var nodes corev1.NodeList
	if err := b.Client.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		key := client.ObjectKeyFromObject(&node)
		if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		if err := b.Client.Get(t.Context(), key, &node); err != nil {
			t.Fatal(err)
		}
		if gate.DefaultGate().Armed(&node) {
			armed++
		}
	}
	return armed
}

func TestGuard_TheBreakerHoldsBack(t *testing.T) {
	b := newBench(t, newInput(), interceptor.Funcs{})
	b.tells()
	b.copies(t, 19, func(*input) {})
	b.clock.SetTime(now.Add(ttl))
	armed := b.lookAtAll(t)
	if armed != 8 {
		t.Errorf("armed %d of 20 Nodes whose agents fell silent, want 8", armed)
	}
	b.expectMetrics(t, `
# HELP nodegate_guard_breaker_tripped 1 while so many Nodes were armed for Expired and AgentAbsent that others have to wait; else 0.
# TYPE nodegate_guard_breaker_tripped gauge
nodegate_guard_breaker_tripped{gate="agent"} 1
`, "nodegate_guard_breaker_tripped")

	// Evidence is not limited.
	b.evident(t)
	if armed := b.lookAtAll(t); armed != 9 {
		t.Errorf("armed %d Nodes with one that shows evidence, want 9", armed)
	}

	b.clock.SetTime(now.Add(ttl + breakerWindow))
	if armed := b.lookAtAll(t); armed != 17 {
		t.Errorf("armed %d Nodes after the window, want 17", armed)
	}
}

// TestGuard_TheBreakerCountsWhatMayHaveBeenDone: a write that was refused was not
// made; of one that was not answered nobody knows.
func TestGuard_TheBreakerCountsWhatMayHaveBeenDone(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for name, tc := range map[string]struct {
		err  error
		want int
	}{
		"a conflict":      {apierrors.NewConflict(nodes, nodeName, errors.New("changed")), 0},
		"too many":        {apierrors.NewTooManyRequests("busy", 1), 0},
		"forbidden":       {apierrors.NewForbidden(nodes, nodeName, errors.New("no")), 0},
		"denied":          {apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, nodeName, nil), 0},
		"gone":            {apierrors.NewNotFound(nodes, nodeName), 0},
		"no answer":       {context.DeadlineExceeded, 1},
		"etcd's timeout":  {apierrors.NewTimeoutError("etcd", 1), 1},
		"an error inside": {apierrors.NewInternalError(errors.New("etcd")), 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, newInput(), interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return tc.err
				},
			})
			b.clock.SetTime(now.Add(ttl))
			_, _ = b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: nodeName}})
			if got := b.breaker(gate.DefaultName).count(); got != tc.want {
				t.Errorf("counts %d, want %d", got, tc.want)
			}
		})
	}
}

// noLeases is an API server that does not answer for Leases.
type noLeases struct {
	coordinationv1client.LeaseInterface
}

func (noLeases) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	return nil, context.DeadlineExceeded
}

// TestGuard_WhatCannotBeToldIsNotDone: where the Lease cannot be written, nothing is
// armed for silence and nothing counted, of no gate.
func TestGuard_WhatCannotBeToldIsNotDone(t *testing.T) {
	b := newBench(t, newInput(), interceptor.Funcs{})
	b.Lease = &Lease{client: noLeases{}}
	cfg := gate.Default()
	second := cfg.Gates[0]
	second.Name, second.Taint.Key = "second", "example.com/second"
	cfg.Gates = append(cfg.Gates, second)
	b.Configuration = func() *gate.Configuration { return cfg }
	b.update(t, func(in *input) {
		in.node.Annotations[second.HeartbeatAnnotation()] = in.node.Annotations[in.gate.HeartbeatAnnotation()]
	})
	b.look(t)
	b.breaker(gate.DefaultName).announced = 1 // of this gate, one was told of ahead
	b.clock.SetTime(now.Add(ttl))
	for range 3 {
		if _, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: nodeName}}); err == nil {
			t.Error("armed for silence though the Lease was not written")
		}
	}
	b.expectTaints(t)
	if first := b.breaker(gate.DefaultName); first.count() != 0 || first.announced != 1 {
		t.Errorf("of the first gate counts %d, %d told ahead", first.count(), first.announced)
	}
	if second := b.breaker("second"); second.count() != 0 || second.announced != 0 {
		t.Errorf("of the second gate counts %d, %d told ahead", second.count(), second.announced)
	}
}

// evident adds a Node whose agent says that it does not serve.
func (b *bench) evident(t *testing.T) {
	t.Helper()
	in := newInput()
	in.node.Name, in.node.UID = "evident", "evident"
	heartbeat(func(hb *gate.Heartbeat) { hb.NodeUID, hb.Ready = "evident", false })(&in)
	if err := b.Client.Create(t.Context(), in.node); err != nil {
		t.Fatal(err)
	}
}

func TestGuard_ObserveIsNotLimited(t *testing.T) {
	b := newBench(t, newInput(), interceptor.Funcs{})
	b.mode = gate.ModeObserve
	b.copies(t, 19, func(*input) {})
	b.clock.SetTime(now.Add(ttl))
	b.lookAtAll(t)
	b.expectMetrics(t, `
# HELP nodegate_guard_would_arm_total Nodes that the guard would have armed in the mode enforce, by gate and reason, each trouble once; counted in the mode observe.
# TYPE nodegate_guard_would_arm_total counter
nodegate_guard_would_arm_total{gate="agent",reason="Expired"} 20
`, "nodegate_guard_would_arm_total")
}

func TestGuard_SuspensionHoldsBack(t *testing.T) {
	b := newBench(t, newInput(at(now.Add(ttl))), interceptor.Funcs{})
	b.look(t)
	b.expectTaints(t, gateTaint)
	b.update(t, func(in *input) { in.node.Spec.Taints = nil })
	b.term.suspend = notice.Suspension{Until: now.Add(ttl + 20*time.Second), Reason: "a test"}
	if after := b.look(t); after != 20*time.Second {
		t.Errorf("looks again after %s, want 20s", after)
	}
	b.expectTaints(t)
	b.update(t, heartbeat(func(hb *gate.Heartbeat) { hb.Ready = false }))
	b.look(t)
	b.expectTaints(t, gateTaint)
}

// TestGuard_SuspensionDoesNotFollowAClock: the API server's clock was a day ahead
// when the guard began, and is set right.
func TestGuard_SuspensionDoesNotFollowAClock(t *testing.T) {
	b := newBench(t, newInput(), interceptor.Funcs{})
	b.look(t)
	b.term.suspend = notice.Suspension{Until: now.Add(24 * time.Hour), Reason: "a test"}
	b.clock.SetTime(now.Add(ttl))
	if err := b.patrol(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.look(t)
	b.expectTaints(t, gateTaint)
}

func TestGuard_ReportsNodesWithoutAgents(t *testing.T) {
	b := newBench(t, newInput(noHeartbeat), interceptor.Funcs{})
	b.tells()
	b.copies(t, 1, taint("dedicated", corev1.TaintEffectNoSchedule))
	metric := func(count int) {
		t.Helper()
		b.expectMetrics(t, fmt.Sprintf(`
# HELP nodegate_guard_agentless_nodes Governed Nodes where no DaemonSet of the gate's agent can run a pod, so that they are never armed for Expired and AgentAbsent.
# TYPE nodegate_guard_agentless_nodes gauge
nodegate_guard_agentless_nodes{gate="agent"} %d
`, count), "nodegate_guard_agentless_nodes")
	}
	patrol := func(after time.Duration) []string {
		t.Helper()
		b.clock.SetTime(now.Add(after))
		if err := b.patrol(t.Context()); err != nil {
			t.Fatal(err)
		}
		return b.told()
	}
	if told := patrol(0); len(told) != 0 {
		t.Errorf("told at first sight: %q", told)
	}
	metric(1)
	told := patrol(Grace)
	if len(told) != 1 || !strings.HasPrefix(told[0], "copy-0|Warning|NoAgentCanRun|") {
		t.Errorf("told %q", told)
	}
	if told := patrol(10 * Grace); len(told) != 0 {
		t.Errorf("told again: %q", told)
	}
	// An agent that runs there may stay.
	pod := agentPod("agent-2", true)
	pod.Spec.NodeName = "copy-0"
	if err := b.Client.Create(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	patrol(10 * Grace)
	metric(0)
	if err := b.Client.Delete(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	patrol(10 * Grace)
	metric(1)
	if told := patrol(11 * Grace); len(told) != 1 {
		t.Errorf("told %q when it is so again", told)
	}
	// It has become a node for agents, of a pool of its own.
	pool := agentDaemonSet()
	pool.Name = "pool"
	pool.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	if err := b.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	patrol(12 * Grace)
	metric(0)
}

// TestGuard_ADaemonSetThatIsBeingDeletedIsNone: that is said once, and not of every
// Node, however long it takes.
func TestGuard_ADaemonSetThatIsBeingDeletedIsNone(t *testing.T) {
	b := newBench(t, newInput(func(in *input) { in.daemonSets[0].Finalizers = []string{"foregroundDeletion"} }), interceptor.Funcs{})
	b.tells()
	b.Lease = &Lease{client: noLeases{}, key: types.NamespacedName{Name: "lease"}}
	b.copies(t, 3, func(*input) {})
	if err := b.Client.Delete(t.Context(), agentDaemonSet()); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		b.clock.SetTime(now.Add(time.Duration(i) * Grace))
		_ = b.patrol(t.Context()) // there is no Lease to write
	}
	if told := b.told(); len(told) != 1 || !strings.HasPrefix(told[0], "lease|Warning|NoAgentDaemonSet|") {
		t.Errorf("told %q", told)
	}
}

// TestCount_TheLongestInterval is that of the agent that writes most rarely.
func TestCount_TheLongestInterval(t *testing.T) {
	var nodes []corev1.Node
	for _, ttl := range []time.Duration{ttl, gate.MaxTTL, ttl} {
		in := newInput(heartbeat(func(hb *gate.Heartbeat) { hb.TTL = ttl }))
		nodes = append(nodes, *in.node)
	}
	if got, want := count(gate.DefaultGate(), nodes, nil).interval, 330*time.Second; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestGuard_ForgetsRemovedGates(t *testing.T) {
	b := newBench(t, newInput(noDaemonSet), interceptor.Funcs{})
	cfg := gate.Default()
	b.Configuration = func() *gate.Configuration { return cfg }
	b.look(t)
	cfg = gate.Default()
	cfg.Gates[0].Name = "other"
	if err := b.patrol(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.expectMetrics(t, `
# HELP nodegate_guard_agent_daemonset_missing 1 if there is no DaemonSet of the gate's agent, so that nothing is armed for Expired and AgentAbsent; else 0.
# TYPE nodegate_guard_agent_daemonset_missing gauge
nodegate_guard_agent_daemonset_missing{gate="other"} 1
# HELP nodegate_guard_breaker_tripped 1 while so many Nodes were armed for Expired and AgentAbsent that others have to wait; else 0.
# TYPE nodegate_guard_breaker_tripped gauge
nodegate_guard_breaker_tripped{gate="other"} 0
`, "nodegate_guard_agent_daemonset_missing", "nodegate_guard_breaker_tripped")
	if troubles := b.memory.nodes[nodeName].gates; troubles[gate.DefaultName] != nil {
		t.Errorf("remembers of a gate that is gone %+v", troubles)
	}
}

// TestGuard_NarratesARecreatedNode: a watch that skips its deletion shows the Node
// that was deleted and the one that was created as two states of one.
func TestGuard_NarratesARecreatedNode(t *testing.T) {
	b := newBench(t, newInput(), interceptor.Funcs{})
	b.tells()
	b.look(t)
	recreated := newInput(noHeartbeat, taint(gate.DefaultTaintKey, corev1.TaintEffectNoSchedule), func(in *input) { in.node.UID = "another" })
	b.saw(b.node(t), recreated.node)
	if told := b.told(); len(told) != 1 || !strings.HasPrefix(told[0], "worker-1|Normal|Created|") {
		t.Errorf("told %q", told)
	}
}

// TestGuard_Narrates what it sees, whoever does it; of its own arms it knows why.
func TestGuard_Narrates(t *testing.T) {
	b := newBench(t, newInput(at(now.Add(ttl))), interceptor.Funcs{})
	b.tells()
	before := b.node(t)
	b.saw(nil, before) // it does not lead yet
	b.look(t)
	after := b.node(t)
	b.saw(before, after)
	reopened := after.DeepCopy()
	reopened.Spec.Taints = nil
	b.saw(after, reopened)
	again := reopened.DeepCopy()
	again.ResourceVersion, again.Spec.Taints = "somebody's", after.Spec.Taints
	b.saw(reopened, again)
	got := strings.Join(b.told(), "\n")
	want := strings.Join([]string{
		`worker-1|Warning|Expired|Arm/agent|Gate "agent" armed by guard: the last heartbeat, of 2026-11-29T11:02:53Z, was good until 2026-11-29T11:04:23Z`,
		`worker-1|Warning|Opened|Open/agent|Gate "agent" opened by other: the heartbeat is too old`,
		`worker-1|Warning|Expired|Arm/agent|Gate "agent" armed by other: the heartbeat is too old`,
	}, "\n")
	if got != want {
		t.Errorf("told\n%s\nwant\n%s", got, want)
	}
	b.expectMetrics(t, `
# HELP nodegate_guard_seen_armed_total Nodes that the guard saw become armed, by gate, reason (Created, or what the heartbeat was worth) and who did it: guard, admission or other.
# TYPE nodegate_guard_seen_armed_total counter
nodegate_guard_seen_armed_total{by="guard",gate="agent",reason="Expired"} 1
nodegate_guard_seen_armed_total{by="other",gate="agent",reason="Expired"} 1
# HELP nodegate_guard_seen_opened_total Nodes that the guard saw become open, by gate and who did it: agent, bypass or other.
# TYPE nodegate_guard_seen_opened_total counter
nodegate_guard_seen_opened_total{by="other",gate="agent"} 1
`, "nodegate_guard_seen_armed_total", "nodegate_guard_seen_opened_total")
}
