package guard_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/guard"
	"github.com/nodegate/nodegate/internal/apiclock"
	"github.com/nodegate/nodegate/test/cluster"
)

const (
	patience = 3 * time.Minute
	boot     = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	nextBoot = "0f3c9c54-7d0e-4a53-9d0b-6a2f7a1b5e11"
	// lonely is the gate of an agent that has no DaemonSet.
	lonely = "lonely"
)

// environment is a real API server on which one guard acts. Nothing else arms or
// opens.
type environment struct {
	config *rest.Config
	admin  client.WithWatch
	clock  *apiclock.Clock
	cfg    *gate.Configuration
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	// Tests that wait for real time to pass need no core of their own.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	c := cluster.ForTest(t)
	e := &environment{config: rest.CopyConfig(c.Admin), clock: apiclock.New(), cfg: gate.Default()}
	e.cfg.Gates = append(e.cfg.Gates, gate.Gate{
		Name:         lonely,
		Taint:        gate.Taint{Key: "example.com/lonely", Effect: corev1.TaintEffectNoSchedule},
		NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"lonely": "true"}},
		Agent:        gate.Agent{Namespace: gate.Namespace, ServiceAccount: "lonely", PodLabels: map[string]string{"app": "lonely"}},
	})
	e.config.Wrap(e.clock.Wrap)
	var err error
	if e.admin, err = client.NewWithWatch(e.config, client.Options{}); err != nil {
		t.Fatal(err)
	}
	e.create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: gate.Namespace}})
	e.create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: gate.Namespace}})
	e.create(t, daemonSet())
	// A fleet of which the tests arm less than the breaker lets pass.
	for i := range 40 {
		e.node(t, fmt.Sprintf("fleet-%d", i), setup{labels: map[string]string{"no-agent": ""}})
	}
	e.guard(t, e.config, e.cfg)
	return e
}

// troubled is a gate that only a guard of its own knows.
const troubled = "troubled"

func troubledGate() gate.Gate {
	return gate.Gate{
		Name:         troubled,
		Taint:        gate.Taint{Key: "example.com/troubled", Effect: corev1.TaintEffectNoSchedule},
		NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{troubled: "true"}},
		Agent:        gate.Agent{Namespace: gate.Namespace, ServiceAccount: troubled, PodLabels: map[string]string{"app": troubled}},
	}
}

// guard starts a guard and stops it when the test ends.
func (e *environment) guard(t *testing.T, reach *rest.Config, cfg *gate.Configuration) {
	t.Helper()
	mgr, err := ctrl.NewManager(reach, ctrl.Options{
		Cache:      guard.CacheOptions(cfg),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	g := &guard.Guard{
		Client:        mgr.GetClient(),
		Log:           slog.New(slog.DiscardHandler),
		Configuration: func() *gate.Configuration { return cfg },
		Clock:         e.clock,
		InstalledAt:   time.Now().Add(-time.Hour),
	}
	if err := g.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("running the guard: %v", err)
		}
	})
}

func daemonSet() *appsv1.DaemonSet {
	agent := map[string]string{gate.AgentLabel: gate.AgentLabelValue}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "nodegate-agent", Namespace: gate.Namespace},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: agent},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: agent},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "agent", Image: "agent"}},
					Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
							MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "no-agent", Operator: corev1.NodeSelectorOpDoesNotExist}},
						}}},
					}},
				},
			},
		},
	}
}

func (e *environment) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := client.IgnoreAlreadyExists(e.admin.Create(t.Context(), object)); err != nil {
		t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
	}
}

// setup is what a Node looks like when it comes into the guard's care.
type setup struct {
	labels    map[string]string
	gate      string
	heartbeat func(*gate.Heartbeat)
	raw       string
	pod       bool
}

// node creates a Node, open, and puts it into the guard's care with a heartbeat.
func (e *environment) node(t *testing.T, name string, s setup) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.io/os": "linux", gate.ExemptLabel: "true",
	}}}
	e.create(t, node)
	e.boot(t, node, boot)
	if s.pod {
		e.pod(t, name)
	}
	if s.gate == "" {
		s.gate = gate.DefaultName
	}
	if s.raw == "" {
		s.raw = e.heartbeat(t, node, s.heartbeat)
	}
	labels := map[string]any{gate.ExemptLabel: nil}
	for key, value := range s.labels {
		labels[key] = value
	}
	e.merge(t, node, map[string]any{"metadata": map[string]any{
		"labels": labels, "annotations": map[string]any{gate.HeartbeatPrefix + s.gate: s.raw},
	}})
	return node
}

func (e *environment) heartbeat(t *testing.T, node *corev1.Node, change func(*gate.Heartbeat)) string {
	t.Helper()
	hb := gate.Heartbeat{Ready: true, Time: e.clock.Now().Truncate(time.Second), TTL: gate.MaxTTL, BootID: boot, NodeUID: node.UID}
	if change != nil {
		change(&hb)
	}
	value, err := hb.Format()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func (e *environment) boot(t *testing.T, node *corev1.Node, id string) {
	t.Helper()
	status := fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q}}}`, id)
	if err := e.admin.Status().Patch(t.Context(), node, client.RawPatch(types.MergePatchType, status)); err != nil {
		t.Fatalf("reporting boot of %s: %v", node.Name, err)
	}
}

// pod binds a Ready agent pod to a node.
func (e *environment) pod(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "agent-" + node, Namespace: gate.Namespace, Labels: map[string]string{gate.AgentLabel: gate.AgentLabelValue},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
	}
	e.create(t, pod)
	e.ready(t, pod, corev1.ConditionTrue)
	return pod
}

func (e *environment) ready(t *testing.T, pod *corev1.Pod, status corev1.ConditionStatus) {
	t.Helper()
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	if err := e.admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatalf("reporting status of pod %s: %v", pod.Name, err)
	}
}

func (e *environment) merge(t *testing.T, node *corev1.Node, change map[string]any) {
	t.Helper()
	patch, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.admin.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatalf("patching node %s: %v", node.Name, err)
	}
}

// armed waits until the Node carries the gate's taint and returns it so.
func (e *environment) armed(t *testing.T, node *corev1.Node, gateName string) *corev1.Node {
	t.Helper()
	i := slices.IndexFunc(e.cfg.Gates, func(g gate.Gate) bool { return g.Name == gateName })
	return e.await(t, node, e.cfg.Gates[i].Armed)
}

// await returns the Node as it is as soon as it is as wanted.
func (e *environment) await(t *testing.T, node *corev1.Node, wanted func(*corev1.Node) bool) *corev1.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch, err := e.admin.Watch(ctx, &corev1.NodeList{}, &client.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", node.Name)})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if seen, ok := event.Object.(*corev1.Node); ok && wanted(seen) {
			return seen
		}
	}
	t.Fatalf("node %s did not become as wanted within %s", node.Name, patience)
	return nil
}

func (e *environment) get(t *testing.T, name string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{}
	if err := e.admin.Get(t.Context(), client.ObjectKey{Name: name}, node); err != nil {
		t.Fatal(err)
	}
	return node
}

func (e *environment) expectOpen(t *testing.T, node *corev1.Node) {
	t.Helper()
	now := e.get(t, node.Name)
	for i := range e.cfg.Gates {
		if e.cfg.Gates[i].Armed(now) {
			t.Errorf("node %s is armed by gate %s", node.Name, e.cfg.Gates[i].Name)
		}
	}
}

func TestGuard_OnAnAPIServer(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	// Subtests run side by side: some of them wait for real time to pass.
	t.Run("reasons", func(t *testing.T) {
		for name, run := range map[string]func(*testing.T){
			"evidence arms at once":                           e.evidence,
			"a new boot arms":                                 e.newBoot,
			"a Node that was born unarmed is armed":           e.bornUnarmed,
			"expiry arms when it is due":                      e.expiry,
			"nothing expires where no agent can run":          e.noAgentCanRun,
			"nothing expires where there is no DaemonSet":     e.noDaemonSet,
			"a node whose agent pod stays away is armed":      e.agentAbsent,
			"a bypass opens until its end":                    e.bypass,
			"a DaemonSet that comes to a node ends its peace": e.daemonSetComes,
			"writes go wrong in every way":                    e.faults,
			"a policy forbids the taint":                      e.denied,
			"somebody removes the taint for ever":             e.untainter,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run(t)
			})
		}
	})
	t.Run("foreign taints are never lost", e.foreignTaints)
}

func (e *environment) evidence(t *testing.T) {
	want := map[string]string{
		"other-boot": "OtherBoot", "other-node": "OtherNode", "not-ready": "NotReady", "from-future": "FromFuture", "malformed": "Malformed", "lonely": "Malformed",
	}
	reasons := map[string]setup{
		"other-boot":  {heartbeat: func(hb *gate.Heartbeat) { hb.BootID = nextBoot }},
		"other-node":  {heartbeat: func(hb *gate.Heartbeat) { hb.NodeUID = "another" }},
		"not-ready":   {heartbeat: func(hb *gate.Heartbeat) { hb.Ready = false }},
		"from-future": {heartbeat: func(hb *gate.Heartbeat) { hb.Time = hb.Time.Add(time.Hour) }},
		"malformed":   {raw: "{"},
		"lonely":      {raw: "{", gate: lonely, labels: map[string]string{"lonely": "true", "kubernetes.io/os": "other"}},
	}
	for name, s := range reasons {
		s.pod = true
		gateName := s.gate
		if gateName == "" {
			gateName = gate.DefaultName
		}
		node := e.armed(t, e.node(t, name, s), gateName)
		if !slices.ContainsFunc(node.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == gate.ManagerGuard }) {
			t.Errorf("%s: the field manager is not %s", name, gate.ManagerGuard)
		}
		e.expectEvent(t, metav1.NamespaceDefault, name, want[name])
	}
}

func (e *environment) newBoot(t *testing.T) {
	node := e.node(t, "reboots", setup{pod: true})
	e.expectOpen(t, node)
	e.boot(t, node, nextBoot)
	e.armed(t, node, gate.DefaultName)
}

func (e *environment) bornUnarmed(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "born", Labels: map[string]string{"kubernetes.io/os": "linux"}}}
	e.create(t, node)
	e.armed(t, node, gate.DefaultName)
}

// soon is a heartbeat that expires at a second to come.
func soon(hb *gate.Heartbeat) { hb.TTL = 4 * time.Second }

func expiryOf(t *testing.T, node *corev1.Node, gateName string) time.Time {
	t.Helper()
	hb, err := gate.ParseHeartbeat(node.Annotations[gate.HeartbeatPrefix+gateName])
	if err != nil {
		t.Fatal(err)
	}
	return hb.Time.Add(hb.TTL)
}

func (e *environment) expiry(t *testing.T) {
	node := e.node(t, "expires", setup{heartbeat: soon, pod: true})
	expiry := expiryOf(t, node, gate.DefaultName)
	e.armed(t, node, gate.DefaultName)
	expectDue(t, expiry)
}

// expectDue: nothing arms before it is due, in the time of the API server, which is
// this machine's and which the guard knows to within a second from the first answer
// on. How soon afterwards is for a machine to say that has nothing else to do.
func expectDue(t *testing.T, due time.Time) {
	t.Helper()
	late := time.Since(due)
	t.Logf("armed %s after it was due", late)
	if late < -time.Second {
		t.Errorf("armed %s before it was due", -late)
	}
}

// noAgentCanRun: the other Node, which expires at the same second or later, shows
// that the guard has had its chance.
func (e *environment) noAgentCanRun(t *testing.T) {
	node := e.node(t, "no-agent", setup{heartbeat: soon, labels: map[string]string{"no-agent": ""}})
	e.armed(t, e.node(t, "no-agent-other", setup{heartbeat: soon}), gate.DefaultName)
	e.expectOpen(t, node)
}

func (e *environment) noDaemonSet(t *testing.T) {
	node := e.node(t, "no-daemonset", setup{heartbeat: soon, gate: lonely, labels: map[string]string{"lonely": "true", "kubernetes.io/os": "other"}})
	e.armed(t, e.node(t, "no-daemonset-other", setup{heartbeat: soon}), gate.DefaultName)
	e.expectOpen(t, node)
}

func (e *environment) agentAbsent(t *testing.T) {
	stays := e.node(t, "agent-stays", setup{pod: true})
	node := e.node(t, "agent-goes", setup{pod: true})
	pod := &corev1.Pod{}
	if err := e.admin.Get(t.Context(), client.ObjectKey{Namespace: gate.Namespace, Name: "agent-agent-goes"}, pod); err != nil {
		t.Fatal(err)
	}
	// Pods that come and go within the grace do not count.
	e.ready(t, pod, corev1.ConditionFalse)
	e.ready(t, pod, corev1.ConditionTrue)
	went := time.Now()
	if err := e.admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	e.armed(t, node, gate.DefaultName)
	after := time.Since(went)
	t.Logf("armed %s after the pod went", after)
	// The guard may have seen no more of this than that it was not Ready at first.
	if after < guard.Grace-5*time.Second {
		t.Errorf("armed %s after the pod went, want %s", after, guard.Grace)
	}
	e.expectOpen(t, stays)
}

func (e *environment) bypass(t *testing.T) {
	node := e.node(t, "bypassed", setup{})
	until := e.clock.Now().Add(4 * time.Second).Truncate(time.Second)
	e.merge(t, node, map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		gate.HeartbeatPrefix + gate.DefaultName: "{",
		gate.BypassPrefix + gate.DefaultName:    "until=" + until.UTC().Format(gate.TimeLayout) + " reason=repair",
	}}})
	e.armed(t, node, gate.DefaultName)
	expectDue(t, until)
}

func (e *environment) daemonSetComes(t *testing.T) {
	node := e.node(t, "joins", setup{heartbeat: soon, labels: map[string]string{"no-agent": "", "special": ""}})
	e.armed(t, e.node(t, "joins-other", setup{heartbeat: soon}), gate.DefaultName)
	e.expectOpen(t, node)
	special := daemonSet()
	special.Name = "special"
	special.Spec.Template.Spec.Affinity = nil
	special.Spec.Template.Spec.NodeSelector = map[string]string{"special": ""}
	e.create(t, special)
	e.armed(t, node, gate.DefaultName)
}

// foreignTaints: while the guard arms, another controller changes taints of its
// own as controllers do, by optimistic update.
func (e *environment) foreignTaints(t *testing.T) {
	const rounds = 200
	node := e.node(t, "shared", setup{pod: true})
	open := e.heartbeat(t, node, nil)
	closed := e.heartbeat(t, node, func(hb *gate.Heartbeat) { hb.Ready = false })
	annotate := func(value string, taints any) map[string]any {
		change := map[string]any{"metadata": map[string]any{"annotations": map[string]any{gate.HeartbeatPrefix + gate.DefaultName: value}}}
		if taints != nil {
			change["spec"] = map[string]any{"taints": taints}
		}
		return change
	}
	added := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	for round := range rounds {
		e.merge(t, node, annotate(open, []corev1.Taint{{Key: "old", Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}}))
		var wg sync.WaitGroup
		wg.Go(func() { e.merge(t, node.DeepCopy(), annotate(closed, nil)) })
		wg.Go(func() { e.replaceTaint(t, node.Name, fmt.Sprintf("new-%d", round)) })
		wg.Wait()
		shared := e.armed(t, node, gate.DefaultName)
		var got []string
		for _, taint := range shared.Spec.Taints {
			got = append(got, taint.ToString())
		}
		slices.Sort(got)
		want := []string{fmt.Sprintf("new-%d:NoExecute", round), gate.DefaultTaintKey + ":NoSchedule", "second:NoSchedule"}
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("round %d: taints (-want +got):\n%s", round, diff)
		}
	}
}

// replaceTaint replaces one taint and adds another, in two writes, each of which
// rests on what was read.
func (e *environment) replaceTaint(t *testing.T, name, key string) {
	change := func(edit func([]corev1.Taint) []corev1.Taint) {
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			node := &corev1.Node{}
			if err := e.admin.Get(t.Context(), client.ObjectKey{Name: name}, node); err != nil {
				return err
			}
			node.Spec.Taints = edit(node.Spec.Taints)
			return e.admin.Update(t.Context(), node)
		})
		if err != nil {
			t.Errorf("changing taints: %v", err)
		}
	}
	change(func(taints []corev1.Taint) []corev1.Taint {
		taints = slices.DeleteFunc(taints, func(taint corev1.Taint) bool { return taint.Key == "old" })
		return append(taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
	})
	change(func(taints []corev1.Taint) []corev1.Taint {
		return append(taints, corev1.Taint{Key: "second", Effect: corev1.TaintEffectNoSchedule})
	})
}
