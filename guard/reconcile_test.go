package guard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
)

// bench is a guard over a fake client, with a clock that is moved by hand.
type bench struct {
	*Guard
	clock   *clocktesting.FakePassiveClock
	logged  *bytes.Buffer
	metrics *prometheus.Registry
	mode    gate.Mode
}

func newBench(t *testing.T, in input, funcs interceptor.Funcs) *bench {
	t.Helper()
	objects := []client.Object{in.node}
	for i := range in.pods {
		objects = append(objects, &in.pods[i])
	}
	for i := range in.daemonSets {
		objects = append(objects, &in.daemonSets[i])
	}
	b := &bench{
		clock:   clocktesting.NewFakePassiveClock(in.now),
		logged:  &bytes.Buffer{},
		metrics: prometheus.NewRegistry(),
		mode:    gate.ModeEnforce,
	}
	b.Guard = &Guard{
		Client:         fake.NewClientBuilder().WithObjects(objects...).WithInterceptorFuncs(funcs).Build(),
		AgentNamespace: gate.Namespace,
		Log:            slog.New(slog.NewTextHandler(b.logged, nil)),
		Clock:          b.clock,
		InstalledAt:    in.installedAt,
		Metrics:        NewMetrics(),
		Configuration: func() *gate.Configuration {
			cfg := gate.Default()
			cfg.Mode = b.mode
			return cfg
		},
	}
	if err := b.Metrics.Register(b.metrics); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) look(t *testing.T) time.Duration {
	t.Helper()
	result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: nodeName}})
	if err != nil {
		t.Fatalf("reconciling: %v", err)
	}
	return result.RequeueAfter
}

func (b *bench) node(t *testing.T) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	if err := b.Client.Get(t.Context(), client.ObjectKey{Name: nodeName}, node); err != nil {
		t.Fatal(err)
	}
	return node
}

func (b *bench) update(t *testing.T, change func(*input)) {
	t.Helper()
	in := newInput()
	in.node = b.node(t)
	if in.node.Annotations == nil {
		in.node.Annotations = map[string]string{}
	}
	change(&in)
	if err := b.Client.Update(t.Context(), in.node); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) expectTaints(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, taint := range b.node(t).Spec.Taints {
		got = append(got, taint.ToString())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

func (b *bench) expectMetrics(t *testing.T, want string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(b.metrics, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

const gateTaint = gate.DefaultTaintKey + ":NoSchedule"

func TestGuard_ArmsAtTheSecondOfExpiry(t *testing.T) {
	b := newBench(t, newInput(taint("foreign", corev1.TaintEffectNoExecute)), interceptor.Funcs{})
	// The foreign taint would keep the agent away.
	if after := b.look(t); after != 0 {
		t.Errorf("looks again after %s where no agent can run", after)
	}
	b.update(t, func(in *input) { in.node.Spec.Taints[0].Effect = corev1.TaintEffectPreferNoSchedule })
	if after := b.look(t); after != ttl {
		t.Errorf("looks again after %s, want %s", after, ttl)
	}
	b.clock.SetTime(now.Add(ttl - time.Millisecond))
	if after := b.look(t); after != time.Millisecond {
		t.Errorf("looks again after %s, want 1ms", after)
	}
	b.expectTaints(t, "foreign:PreferNoSchedule")
	b.clock.SetTime(now.Add(ttl))
	if after := b.look(t); after != 0 {
		t.Errorf("looks again after %s at an armed node", after)
	}
	b.expectTaints(t, "foreign:PreferNoSchedule", gateTaint)
	b.look(t)
	b.expectTaints(t, "foreign:PreferNoSchedule", gateTaint)
	b.expectMetrics(t, `
# HELP nodegate_guard_agent_daemonset_missing 1 if there is no DaemonSet of the gate's agent, so that nothing is armed for Expired and AgentAbsent; else 0.
# TYPE nodegate_guard_agent_daemonset_missing gauge
nodegate_guard_agent_daemonset_missing{gate="agent"} 0
# HELP nodegate_guard_armed_total Nodes that the guard armed, by gate and reason.
# TYPE nodegate_guard_armed_total counter
nodegate_guard_armed_total{gate="agent",reason="Expired"} 1
# HELP nodegate_guard_breaker_tripped 1 while so many Nodes were armed for Expired and AgentAbsent that others have to wait; else 0.
# TYPE nodegate_guard_breaker_tripped gauge
nodegate_guard_breaker_tripped{gate="agent"} 0
# HELP nodegate_guard_conflicts_total Writes that were decided anew because somebody else wrote the Node at the same time.
# TYPE nodegate_guard_conflicts_total counter
nodegate_guard_conflicts_total 0
# HELP nodegate_guard_events_dropped_total Events that were not written because too many were waiting.
# TYPE nodegate_guard_events_dropped_total counter
nodegate_guard_events_dropped_total 0
# HELP nodegate_guard_expiry_suspended 1 while nothing is armed for Expired and AgentAbsent because nobody led, or the API server did not answer, for too long; else 0.
# TYPE nodegate_guard_expiry_suspended gauge
nodegate_guard_expiry_suspended 0
`, "nodegate_guard_agent_daemonset_missing", "nodegate_guard_armed_total", "nodegate_guard_breaker_tripped",
		"nodegate_guard_conflicts_total", "nodegate_guard_events_dropped_total", "nodegate_guard_expiry_suspended")
}

// TestExposedSince: exposure counts from the best evidence of when it began.
func TestExposedSince(t *testing.T) {
	s := step{in: newInput()}
	if got := exposedSince(s, time.Time{}); !got.Equal(now) {
		t.Errorf("looked at %s, want %s", got, now)
	}
	told := now.Add(-time.Second)
	if got := exposedSince(s, told); !got.Equal(told) {
		t.Errorf("told at %s, want %s", got, told)
	}
	s.since = now.Add(-time.Minute)
	if got := exposedSince(s, told); !got.Equal(s.since) {
		t.Errorf("began at %s, want %s", got, s.since)
	}
}

func TestGuard_ArmsANodeWithoutTaints(t *testing.T) {
	b := newBench(t, newInput(rawHeartbeat("")), interceptor.Funcs{})
	b.look(t)
	b.expectTaints(t, gateTaint)
}

func TestGuard_GraceIsClearedByAReadyPod(t *testing.T) {
	b := newBench(t, newInput(noPods, heartbeatOf(now.Add(-time.Second))), interceptor.Funcs{})
	if after := b.look(t); after != Grace {
		t.Errorf("looks again after %s, want %s", after, Grace)
	}
	b.clock.SetTime(now.Add(Grace - time.Second))
	pod := agentPod("agent-1", true)
	if err := b.Client.Create(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	b.look(t)
	if err := b.Client.Delete(t.Context(), &pod); err != nil {
		t.Fatal(err)
	}
	b.look(t)
	b.clock.SetTime(now.Add(Grace))
	if after := b.look(t); after != Grace-time.Second {
		t.Errorf("looks again after %s, want %s", after, Grace-time.Second)
	}
	b.expectTaints(t)
	b.clock.SetTime(now.Add(2*Grace - time.Second))
	b.look(t)
	b.expectTaints(t, gateTaint)
}

func TestGuard_OneTroubleArmsOnce(t *testing.T) {
	b := newBench(t, newInput(noPods), interceptor.Funcs{})
	b.look(t)
	b.clock.SetTime(now.Add(Grace))
	b.look(t)
	b.expectTaints(t, gateTaint)
	b.look(t) // its own write is seen

	// The agent, whose pod is not seen Ready, opens, by a clock that is late.
	b.update(t, heartbeatOf(now.Add(-2*time.Second)))
	b.update(t, func(in *input) { in.node.Spec.Taints = nil })
	for range 3 {
		b.clock.SetTime(b.clock.Now().Add(Grace))
		b.look(t)
		b.expectTaints(t)
	}

	// Its heartbeat is in time again, and then it falls silent.
	b.clock.SetTime(now.Add(10 * time.Minute))
	b.update(t, heartbeatOf(now.Add(10*time.Minute)))
	if after := b.look(t); after != ttl {
		t.Errorf("looks again after %s, want %s", after, ttl)
	}
	b.clock.SetTime(now.Add(10*time.Minute + ttl))
	b.look(t)
	b.expectTaints(t, gateTaint)
}

func TestGuard_IsBackWhenABypassEnds(t *testing.T) {
	b := newBench(t, newInput(at(now.Add(ttl))), interceptor.Funcs{})
	b.look(t)
	b.expectTaints(t, gateTaint)
	end := now.Add(ttl + 5*time.Minute)
	b.update(t, bypass(end))
	b.update(t, func(in *input) { in.node.Spec.Taints = nil })
	if after := b.look(t); after != 5*time.Minute {
		t.Errorf("looks again after %s, want 5m", after)
	}
	b.expectTaints(t)
	b.clock.SetTime(end)
	b.look(t)
	b.expectTaints(t, gateTaint)
}

func TestGuard_ObserveCountsATroubleOnce(t *testing.T) {
	b := newBench(t, newInput(noPods), interceptor.Funcs{})
	b.mode = gate.ModeObserve
	for _, at := range []time.Duration{0, Grace, ttl, time.Hour} {
		b.clock.SetTime(now.Add(at))
		b.look(t)
	}
	b.expectTaints(t)
	const want = `
# HELP nodegate_guard_would_arm_total Nodes that the guard would have armed in the mode enforce, by gate and reason, each trouble once; counted in the mode observe.
# TYPE nodegate_guard_would_arm_total counter
nodegate_guard_would_arm_total{gate="agent",reason="AgentAbsent"} 1
`
	b.expectMetrics(t, want, "nodegate_guard_would_arm_total", "nodegate_guard_armed_total")

	b.update(t, heartbeatOf(now.Add(time.Hour)))
	b.look(t)
	b.update(t, heartbeat(func(hb *gate.Heartbeat) { hb.Time, hb.Ready = now.Add(time.Hour), false }))
	b.look(t)
	b.look(t)
	b.expectMetrics(t, want+`nodegate_guard_would_arm_total{gate="agent",reason="NotReady"} 1
`, "nodegate_guard_would_arm_total", "nodegate_guard_armed_total")
}

// TestGuard_OthersPodsAreNoAgents: pods of another node, namespace or label do not
// make an agent, nor do DaemonSets of another namespace.
func TestGuard_OthersPodsAreNoAgents(t *testing.T) {
	pods := []corev1.Pod{agentPod("other-node", true), agentPod("other-namespace", true), agentPod("other-label", true)}
	pods[0].Spec.NodeName = "worker-2"
	pods[1].Namespace = "default"
	pods[2].Labels = map[string]string{gate.AgentLabel: "other"}
	b := newBench(t, newInput(func(in *input) { in.pods = pods }), interceptor.Funcs{})
	if after := b.look(t); after != Grace {
		t.Errorf("looks again after %s, want %s", after, Grace)
	}
	b.clock.SetTime(now.Add(Grace))
	b.look(t)
	b.expectTaints(t, gateTaint)

	b = newBench(t, newInput(at(now.Add(ttl)), func(in *input) { in.daemonSets[0].Namespace = "default" }), interceptor.Funcs{})
	b.look(t)
	b.expectTaints(t)
}

// TestGuard_LooksAgainForTheFirstGate that needs it.
func TestGuard_LooksAgainForTheFirstGate(t *testing.T) {
	var g Guard
	g.Clock = clocktesting.NewFakePassiveClock(now)
	at := func(after time.Duration) step { return step{decision: decision{lookAgain: now.Add(after)}} }
	if got := g.nextLook([]step{at(time.Minute), at(time.Second), {}, at(time.Hour)}).RequeueAfter; got != time.Second {
		t.Errorf("looks again after %s, want 1s", got)
	}
}

// TestGuard_MeasuresExposure from when it was told of what it then looked at.
func TestGuard_MeasuresExposure(t *testing.T) {
	b := newBench(t, newInput(), interceptor.Funcs{})
	b.look(t)
	before := b.node(t)
	b.update(t, heartbeat(func(hb *gate.Heartbeat) { hb.Ready = false }))
	b.saw(before, b.node(t))
	b.clock.SetTime(now.Add(3 * time.Second))
	b.saw(before, b.node(t)) // more of it does not make it later
	b.clock.SetTime(now.Add(7 * time.Second))
	b.look(t)
	b.expectTaints(t, gateTaint)
	if got := b.exposed(t); got != 7 {
		t.Errorf("exposed for %g s, want 7", got)
	}
	// The next trouble begins anew.
	b.update(t, func(in *input) { in.node.Spec.Taints = nil })
	b.clock.SetTime(now.Add(8 * time.Second))
	b.look(t)
	if got := b.exposed(t); got != 7 {
		t.Errorf("exposed for %g s in all, want 7", got)
	}
}

// TestGuard_MeasuresExposureByWhatWasBefore its write, which it may be told of before
// the answer comes.
func TestGuard_MeasuresExposureByWhatWasBefore(t *testing.T) {
	var b *bench
	b = newBench(t, newInput(rawHeartbeat("")), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			before := b.node(t)
			err := c.Patch(ctx, object, patch, options...)
			b.clock.SetTime(now.Add(2 * time.Second))
			b.saw(before, b.node(t))
			return err
		},
	})
	b.look(t)
	b.expectTaints(t, gateTaint)
	if got := b.exposed(t); got != 2 {
		t.Errorf("exposed for %g s, want 2", got)
	}
}

// exposed is the sum of all exposures, in seconds.
func (b *bench) exposed(t *testing.T) float64 {
	t.Helper()
	families, err := b.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() == metricsPrefix+"exposure_seconds" {
			for _, metric := range family.GetMetric() {
				sum += metric.GetHistogram().GetSampleSum()
			}
		}
	}
	return sum
}

// TestNodeOfPod: a pod that is bound to no node is of none.
func TestNodeOfPod(t *testing.T) {
	pod := agentPod("agent-1", true)
	if got := nodeOfPod(t.Context(), &pod); len(got) != 1 || got[0].Name != nodeName {
		t.Errorf("asks for %v", got)
	}
	pod.Spec.NodeName = ""
	if got := nodeOfPod(t.Context(), &pod); len(got) != 0 {
		t.Errorf("asks for %v", got)
	}
}

// TestGuard_WhatWasObservedIsArmed as soon as the mode is enforce, for an agent that
// writes no heartbeat too.
func TestGuard_WhatWasObservedIsArmed(t *testing.T) {
	b := newBench(t, newInput(alone, noHeartbeat, func(in *input) { in.pods[0] = agentPod("agent-1", false) }), interceptor.Funcs{})
	b.mode = gate.ModeObserve
	b.look(t)
	b.clock.SetTime(now.Add(Grace))
	b.look(t)
	b.expectMetrics(t, `
# HELP nodegate_guard_would_arm_total Nodes that the guard would have armed in the mode enforce, by gate and reason, each trouble once; counted in the mode observe.
# TYPE nodegate_guard_would_arm_total counter
nodegate_guard_would_arm_total{gate="agent",reason="AgentAbsent"} 1
`, "nodegate_guard_would_arm_total")
	b.mode = gate.ModeEnforce
	b.look(t)
	b.expectTaints(t, gateTaint)
}

func TestGuard_PausedDoesAndCountsNothing(t *testing.T) {
	b := newBench(t, newInput(rawHeartbeat("")), interceptor.Funcs{})
	b.mode = gate.ModePaused
	b.look(t)
	b.expectTaints(t)
	b.expectMetrics(t, "", "nodegate_guard_would_arm_total", "nodegate_guard_armed_total")
	b.mode = gate.ModeEnforce
	b.look(t)
	b.expectTaints(t, gateTaint)
}

func TestGuard_SaysOnceThatThereIsNoDaemonSet(t *testing.T) {
	b := newBench(t, newInput(noDaemonSet), interceptor.Funcs{})
	b.look(t)
	b.clock.SetTime(now.Add(time.Hour))
	b.look(t)
	b.expectTaints(t)
	const said = "No agent DaemonSet"
	if count := strings.Count(b.logged.String(), said); count != 1 {
		t.Errorf("said %d times that there is no DaemonSet:\n%s", count, b.logged)
	}
	b.expectMetrics(t, `
# HELP nodegate_guard_agent_daemonset_missing 1 if there is no DaemonSet of the gate's agent, so that nothing is armed for Expired and AgentAbsent; else 0.
# TYPE nodegate_guard_agent_daemonset_missing gauge
nodegate_guard_agent_daemonset_missing{gate="agent"} 1
`, "nodegate_guard_agent_daemonset_missing")

	other := agentDaemonSet()
	other.Name, other.Spec.Template.Labels = "other", map[string]string{gate.AgentLabel: "other"}
	if err := b.Client.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	b.look(t)
	b.expectTaints(t)
	if err := b.Client.Create(t.Context(), agentDaemonSet()); err != nil {
		t.Fatal(err)
	}
	b.look(t)
	b.expectTaints(t, gateTaint)
}

// A Node that is written between the reading and the write: the API server
// refuses the patch, and the guard decides anew on what is there now.
func TestGuard_DecidesAnewAfterAConflict(t *testing.T) {
	tests := map[string]struct {
		meanwhile  func(*input)
		wantTaints []string
	}{
		"still in trouble":          {meanwhile: label("other", "change"), wantTaints: []string{gateTaint}},
		"a heartbeat came meantime": {meanwhile: heartbeatOf(now)},
		"armed by somebody else": {
			meanwhile:  taint(gate.DefaultTaintKey, corev1.TaintEffectNoSchedule),
			wantTaints: []string{gateTaint},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			patches := 0
			var b *bench
			b = newBench(t, newInput(rawHeartbeat("")), interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
					if patches++; patches == 1 {
						b.update(t, tc.meanwhile)
					}
					return c.Patch(ctx, object, patch, options...)
				},
			})
			b.look(t)
			b.expectTaints(t, tc.wantTaints...)
			b.expectMetrics(t, `
# HELP nodegate_guard_conflicts_total Writes that were decided anew because somebody else wrote the Node at the same time.
# TYPE nodegate_guard_conflicts_total counter
nodegate_guard_conflicts_total 1
`, "nodegate_guard_conflicts_total")
		})
	}
}

func TestGuard_AFailedWriteIsTriedAgain(t *testing.T) {
	patches := 0
	b := newBench(t, newInput(rawHeartbeat("")), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if patches++; patches == 1 {
				return apierrors.NewInternalError(errors.New("etcd is busy"))
			}
			return c.Patch(ctx, object, patch, options...)
		},
	})
	result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: nodeName}})
	if !apierrors.IsInternalError(err) || result != (reconcile.Result{}) {
		t.Errorf("result %v, error %v, want the error alone", result, err)
	}
	b.expectTaints(t)
	b.look(t)
	b.expectTaints(t, gateTaint)
	b.expectMetrics(t, `
# HELP nodegate_guard_armed_total Nodes that the guard armed, by gate and reason.
# TYPE nodegate_guard_armed_total counter
nodegate_guard_armed_total{gate="agent",reason="Malformed"} 1
`, "nodegate_guard_armed_total")
}

// TestGuard_ADeniedWriteIsTriedAgainSlowly: a policy that forbids the taint, or a right
// that is missing, does not go away by asking.
func TestGuard_ADeniedWriteIsTriedAgainSlowly(t *testing.T) {
	for name, err := range map[string]error{
		"a right is missing": apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, nodeName, errors.New("no")),
		"a policy denies":    apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, nodeName, nil),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, newInput(rawHeartbeat("")), interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return err
				},
			})
			for range 2 {
				if after := b.look(t); after != deniedRetry {
					t.Errorf("tries again after %s, want %s", after, deniedRetry)
				}
			}
			if count := strings.Count(b.logged.String(), "level=ERROR"); count != 2 {
				t.Errorf("said %d times, want 2:\n%s", count, b.logged)
			}
			b.expectMetrics(t, `
# HELP nodegate_guard_denied_total Writes that the API server denied: a right is missing, or a policy is in the way.
# TYPE nodegate_guard_denied_total counter
nodegate_guard_denied_total 2
`, "nodegate_guard_denied_total")
		})
	}
}

func TestPredicates(t *testing.T) {
	node := func(changes ...func(*input)) *corev1.Node { in := newInput(changes...); return in.node }
	pod := func(change func(*corev1.Pod)) *corev1.Pod { p := agentPod("agent-1", true); change(&p); return &p }
	daemonSet := func(change func(*appsv1.DaemonSet)) *appsv1.DaemonSet { ds := agentDaemonSet(); change(ds); return ds }
	same := func(*appsv1.DaemonSet) {}
	runs := func(restarts int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}}
		}
	}
	notReady := func(at time.Time) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(at)
		}
	}
	tests := map[string]struct {
		predicate     predicate.Predicate
		before, after client.Object
		want          bool
	}{
		"a kubelet's report": {nodeChanged(), node(), node(func(in *input) {
			in.node.ResourceVersion = "2"
			in.node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
		}), false},
		"a foreign annotation": {nodeChanged(), node(), node(func(in *input) { in.node.Annotations["other"] = "x" }), false},
		"a new boot":           {nodeChanged(), node(), node(func(in *input) { in.node.Status.NodeInfo.BootID = newBoot }), true},
		"a heartbeat":          {nodeChanged(), node(), node(heartbeatOf(now.Add(time.Second))), true},
		"a bypass":             {nodeChanged(), node(), node(bypass(now)), true},
		"a label":              {nodeChanged(), node(), node(label("zone", "b")), true},
		"a taint":              {nodeChanged(), node(), node(taint("foreign", corev1.TaintEffectNoSchedule)), true},
		"a re-created Node":    {nodeChanged(), node(), node(func(in *input) { in.node.UID = "another" }), true},

		"a pod's start": {podChanged(), pod(func(p *corev1.Pod) {}), pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }), false},
		"a pod that is not Ready any more": {podChanged(), pod(func(p *corev1.Pod) {}), pod(func(p *corev1.Pod) {
			p.Status.Conditions[0].Status = corev1.ConditionFalse
		}), true},
		"a pod whose container has started anew": {podChanged(), pod(runs(0)), pod(runs(1)), true},
		"a pod that was Ready in between":        {podChanged(), pod(notReady(now)), pod(notReady(now.Add(time.Second))), true},
		"a pod that is bound":                    {podChanged(), pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), pod(func(*corev1.Pod) {}), true},

		"a DaemonSet's status": {daemonSetChanged(), daemonSet(same), daemonSet(func(ds *appsv1.DaemonSet) { ds.Status.NumberReady = 1 }), false},
		"a DaemonSet's spec":   {daemonSetChanged(), daemonSet(same), daemonSet(func(ds *appsv1.DaemonSet) { ds.Generation = 2 }), true},
		"a DaemonSet that is being deleted": {daemonSetChanged(), daemonSet(same), daemonSet(func(ds *appsv1.DaemonSet) {
			ds.DeletionTimestamp = &metav1.Time{Time: now}
		}), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.predicate.Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
				t.Errorf("passes: %t, want %t", got, tc.want)
			}
		})
	}
}

func TestGuard_ConflictsWithoutEndWaitTheirTurn(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, nodeName, errors.New("changed"))
	patches := 0
	b := newBench(t, newInput(rawHeartbeat("")), interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			patches++
			return conflict
		},
	})
	result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: nodeName}})
	if !apierrors.IsConflict(err) || result != (reconcile.Result{}) {
		t.Errorf("result %v, error %v, want the conflict alone", result, err)
	}
	if patches != attempts {
		t.Errorf("tried %d times, want %d", patches, attempts)
	}
}

func TestGuard_ANodeThatIsGoneIsForgotten(t *testing.T) {
	b := newBench(t, newInput(noPods), interceptor.Funcs{})
	b.look(t)
	if err := b.Client.Delete(t.Context(), b.node(t)); err != nil {
		t.Fatal(err)
	}
	b.look(t)
	if len(b.memory.nodes) != 0 {
		t.Errorf("remembers %v", b.memory.nodes)
	}
}

// TestGuard_ADeadAgentIsNoAnswer: an agent whose clock is late answered, and was let
// be. When it falls silent it is armed, a ttl after it was last heard.
func TestGuard_ADeadAgentIsNoAnswer(t *testing.T) {
	b := newBench(t, newInput(at(now.Add(ttl))), interceptor.Funcs{})
	b.look(t)
	b.expectTaints(t, gateTaint)
	for i := range 5 {
		beat := now.Add(time.Duration(i+1) * 30 * time.Second)
		b.clock.SetTime(beat.Add(2 * ttl))
		b.update(t, heartbeatOf(beat))
		b.update(t, func(in *input) { in.node.Spec.Taints = nil })
		if after := b.look(t); after != ttl {
			t.Errorf("looks again after %s, want %s", after, ttl)
		}
		b.expectTaints(t)
	}
	b.clock.SetTime(b.clock.Now().Add(ttl - time.Second))
	if after := b.look(t); after != time.Second {
		t.Errorf("looks again after %s, want 1s", after)
	}
	b.expectTaints(t)
	b.clock.SetTime(b.clock.Now().Add(time.Second))
	b.look(t)
	b.expectTaints(t, gateTaint)
}

func TestGuard_ZeroValue(t *testing.T) {
	in := newInput(noHeartbeat)
	in.node.CreationTimestamp.Time = time.Time{}
	b := newBench(t, in, interceptor.Funcs{})
	b.Guard = &Guard{Client: b.Client, AgentNamespace: gate.Namespace, Log: slog.New(slog.DiscardHandler)}
	if !b.NeedLeaderElection() {
		t.Error("needs no leader election")
	}
	if after := b.look(t); after != 0 {
		t.Errorf("looks again after %s at a node whose agent pod is Ready", after)
	}
	if err := b.Client.Delete(t.Context(), &in.pods[0]); err != nil {
		t.Fatal(err)
	}
	if after := b.look(t); after <= Grace-10*time.Second || after > Grace {
		t.Errorf("looks again after %s, want about %s", after, Grace)
	}
	b.Clock = clocktesting.NewFakePassiveClock(time.Now().Add(Grace))
	b.look(t)
	b.expectTaints(t, gateTaint)
}

func TestTrim_KeepsHowAPodFares(t *testing.T) {
	pod := agentPod("agent-1", false)
	pod.UID = "1"
	pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now)
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		RestartCount: 2, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now)}},
	}}
	object, err := trimPod(&pod)
	if err != nil {
		t.Fatal(err)
	}
	trimmed := object.(*corev1.Pod)
	if got, want := processOf(trimmed), processOf(&pod); got != want || want == "" {
		t.Errorf("runs %q, want %q", got, want)
	}
	if trimmed.Spec.NodeName != nodeName {
		t.Errorf("is on %q, want %q", trimmed.Spec.NodeName, nodeName)
	}
	if got := notReadySince(trimmed); !got.Equal(now) {
		t.Errorf("not Ready since %s, want %s", got, now)
	}
}

// TestAgentPods: the cache holds the pods of every gate's agent.
func TestAgentPods(t *testing.T) {
	gateOf := func(namespace, app string) gate.Gate {
		return gate.Gate{Agent: gate.Agent{Namespace: namespace, PodLabels: map[string]string{"app": app}}}
	}
	cfg := &gate.Configuration{Gates: []gate.Gate{gateOf("one", "a"), gateOf("two", "b"), gateOf("two", "c"), gateOf("three", "d"), gateOf("three", "d")}}
	for namespace, want := range map[string]string{"one": "app=a", "two": "", "three": "app=d"} {
		if got := placement.PodSelectors(cfg)[namespace].String(); got != want {
			t.Errorf("in namespace %s selects %q, want %q", namespace, got, want)
		}
	}
}

func TestTrim_KeepsWhatIsJudged(t *testing.T) {
	inputs := map[string]input{
		"Fresh":       newInput(),
		"Expired":     newInput(at(now.Add(ttl)), label("dedicated", "a")),
		"Bypassed":    newInput(bypass(now.Add(time.Hour))),
		"Absent":      newInput(noHeartbeat, created(now)),
		"AgentAbsent": newInput(missing(now), at(now.Add(Grace))),
		"armed":       newInput(rawHeartbeat(""), taint(gate.DefaultTaintKey, corev1.TaintEffectNoSchedule)),
		"exempt":      newInput(rawHeartbeat(""), label(gate.ExemptLabel, "true")),
	}
	for name, in := range inputs {
		t.Run(name, func(t *testing.T) {
			in.node.Annotations["other"] = strings.Repeat("x", 1000)
			in.node.Status.Images = []corev1.ContainerImage{{Names: []string{"image"}}}
			want, wantMissing := decide(in), in.agentMissing()
			node, err := trimNode(in.node)
			if err != nil {
				t.Fatal(err)
			}
			in.node = node.(*corev1.Node)
			for i := range in.pods {
				pod, err := trimPod(&in.pods[i])
				if err != nil {
					t.Fatal(err)
				}
				in.pods[i] = *pod.(*corev1.Pod)
			}
			if got := decide(in); got != want || in.agentMissing() != wantMissing {
				t.Errorf("decides %+v on a trimmed Node, want %+v", got, want)
			}
			if len(in.node.Status.Images) != 0 || in.node.Annotations["other"] != "" {
				t.Errorf("keeps %+v", in.node)
			}
		})
	}
}
