package guard

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodegate/nodegate/gate"
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

// lookAtAll looks at every Node and returns how many are armed then, and how long
// the others are held back at most.
func (b *bench) lookAtAll(t *testing.T) (armed int, held time.Duration) {
	t.Helper()
	var nodes corev1.NodeList
	if err := b.Client.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		key := client.ObjectKeyFromObject(&node)
		result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
		if err != nil {
			t.Fatal(err)
		}
		held = max(held, result.RequeueAfter)
		if err := b.Client.Get(t.Context(), key, &node); err != nil {
			t.Fatal(err)
		}
		if gate.DefaultGate().Armed(&node) {
			armed++
		}
	}
	return armed, held
}

func TestGuard_TheBreakerHoldsBack(t *testing.T) {
	b := newBench(t, newInput(), interceptor.Funcs{})
	b.tells()
	b.copies(t, 19, func(*input) {})
	b.clock.SetTime(now.Add(ttl))
	armed, held := b.lookAtAll(t)
	if armed != 8 {
		t.Errorf("armed %d of 20 Nodes whose agents fell silent, want 8", armed)
	}
	if held < breakerWindow || held > breakerWindow+breakerStep {
		t.Errorf("the others are looked at again after %s", held)
	}
	b.expectMetrics(t, `
# HELP nodegate_guard_breaker_tripped 1 while so many Nodes were armed for Expired and AgentAbsent that others have to wait; else 0.
# TYPE nodegate_guard_breaker_tripped gauge
nodegate_guard_breaker_tripped{gate="agent"} 1
`, "nodegate_guard_breaker_tripped")

	// Evidence is not limited.
	b.evident(t)
	if armed, _ := b.lookAtAll(t); armed != 9 {
		t.Errorf("armed %d Nodes with one that shows evidence, want 9", armed)
	}

	b.clock.SetTime(now.Add(ttl + held))
	if armed, _ := b.lookAtAll(t); armed != 17 {
		t.Errorf("armed %d Nodes after the window, want 17", armed)
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
	b.term.suspend = suspension{until: now.Add(ttl + 20*time.Second), reason: "a test"}
	if after := b.look(t); after != 20*time.Second {
		t.Errorf("looks again after %s, want 20s", after)
	}
	b.expectTaints(t)
	b.update(t, heartbeat(func(hb *gate.Heartbeat) { hb.Ready = false }))
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
	// It has become a node for agents, of a pool of its own.
	pool := agentDaemonSet()
	pool.Name = "pool"
	pool.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	if err := b.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	patrol(11 * Grace)
	metric(0)
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
