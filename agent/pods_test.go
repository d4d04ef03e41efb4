package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/hold"
	"github.com/nodegate/nodegate/internal/netconf"
	"github.com/nodegate/nodegate/test/cluster"
)

// podSocket is short enough for one.
func podSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ng")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run", "cni.sock")
}

// TestPods_OnAnAPIServer: which pods wait while the gate is closed, for an agent
// with an account of its own.
func TestPods_OnAnAPIServer(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	created, err := w.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "pods-"}}, metav1.CreateOptions{})
	w.ok(err)
	namespace := created.Name
	create := func(pod *corev1.Pod) netconf.Pod {
		t.Helper()
		if pod.Spec.NodeName == "" {
			pod.Spec.NodeName = w.name
		}
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		pod, err := w.admin.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		w.ok(err)
		t.Cleanup(func() { w.deletePod(namespace, pod.Name, 0) })
		return netconf.Pod{Namespace: namespace, Name: pod.Name, UID: string(pod.UID)}
	}
	tolerating := func(name string, t corev1.Toleration) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{t}}}
	}

	check := &lever{}
	check.set(false)
	o := w.options(w.identity(), check)
	o.PodSocket = podSocket(t)
	var mode atomic.Value
	mode.Store(gate.ModeEnforce)
	o.Mode = func() gate.Mode { return mode.Load().(gate.Mode) }
	o.Gates[0].Agent = gate.Agent{Namespace: namespace, PodLabels: map[string]string{"app": "opener"}}
	o.Gates[0].Checks = []gate.Check{{Pod: &gate.PodCheck{Namespace: namespace, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "mesh"}}}}}
	a, _ := w.run(o)
	w.eventuallyNode("not ready", func(n *corev1.Node) bool { return saysReady(n, false) })
	expect := func(pod netconf.Pod, want string) {
		t.Helper()
		w.eventually(func() string {
			again, reason := a.pods.Keeper.Holds(t.Context(), pod, time.Now())
			if got := text(reason); got != want || again {
				return fmt.Sprintf("%s waits for %q, want %q", pod.Name, got, want)
			}
			return ""
		})
	}

	const closed = `gate "agent" is closed: check check-0: down`
	const unknown = closed + "; whether the pod tolerates that is not known: "
	tolerant := create(tolerating("tolerant", corev1.Toleration{Key: gate.DefaultTaintKey, Operator: corev1.TolerationOpExists}))
	expect(tolerant, unknown+fmt.Sprintf("pods %q is forbidden: User %q cannot get resource \"pods\" in API group \"\" in the namespace %q", tolerant.Name,
		gate.DefaultGate().Agent.Username(), namespace))
	w.allowGetPods()
	expect(tolerant, "")
	expect(create(tolerating("tolerates-all", corev1.Toleration{Operator: corev1.TolerationOpExists})), "")
	expect(create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "opener", Labels: map[string]string{"app": "opener"}}}), "")
	expect(create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mesh", Labels: map[string]string{"app": "mesh"}}}), "")
	ordinary := create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "ordinary", Labels: map[string]string{"app": "shop"}}})
	expect(ordinary, closed)
	expect(create(tolerating("another-key", corev1.Toleration{Key: "example.com/a", Operator: corev1.TolerationOpExists})), closed)
	expect(create(tolerating("another-effect", corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})), closed)

	elsewhere := tolerating("elsewhere", corev1.Toleration{Operator: corev1.TolerationOpExists})
	elsewhere.Spec.NodeName = "another"
	expect(create(elsewhere), unknown+"the API server has that pod on another node")
	expect(netconf.Pod{Namespace: namespace, Name: tolerant.Name, UID: ordinary.UID}, unknown+"the API server has another pod of that name")
	expect(netconf.Pod{Namespace: namespace, Name: tolerant.Name}, "")
	expect(netconf.Pod{Namespace: namespace, Name: "gone"}, unknown+`pods "gone" not found`)
	expect(netconf.Pod{Namespace: "a/../b", Name: "x"}, unknown+`invalid namespace "a/../b": [may not contain '/']`)
	expect(netconf.Pod{Name: "x"}, unknown+"the runtime did not say which pod it is")
	static := tolerating("static", corev1.Toleration{Operator: corev1.TolerationOpExists})
	static.Annotations = map[string]string{staticPodAnnotation: "f00"}
	known := create(static)
	expect(netconf.Pod{Namespace: namespace, Name: known.Name, UID: "f00"}, "")

	for _, other := range []gate.Mode{gate.ModeObserve, gate.ModePaused} {
		mode.Store(other)
		expect(ordinary, "")
	}
	mode.Store(gate.ModeEnforce)
	expect(ordinary, closed)
	bypass, err := gate.Bypass{Until: time.Now().Add(time.Hour).Truncate(time.Second), Reason: "test"}.Format()
	w.ok(err)
	w.update(func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, gate.BypassPrefix+gate.DefaultName, bypass)
	})
	expect(ordinary, "")
	w.update(func(n *corev1.Node) { delete(n.Annotations, gate.BypassPrefix+gate.DefaultName) })
	expect(ordinary, closed)
	w.update(func(n *corev1.Node) { n.Labels[gate.ExemptLabel] = "true" })
	expect(ordinary, "")
	w.update(func(n *corev1.Node) { delete(n.Labels, gate.ExemptLabel) })
	expect(ordinary, closed)

	done := make(chan error, 1)
	go func() {
		done <- hold.Wait(t.Context(), netconf.Settings{Socket: o.PodSocket, Timeout: netconf.MaxTimeout}, ordinary, time.Now())
	}()
	w.eventually(func() string {
		if testutil.ToFloat64(a.metrics.waitingPods) != 1 {
			return "no pod waits"
		}
		return ""
	})
	check.set(true)
	w.ok(<-done)
}

// TestPods_WithoutTheAPIServer: while it is away, what the checks say holds and
// lets go, whatever the Node shows.
func TestPods_WithoutTheAPIServer(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	wire, err := cluster.NewWire(w.cluster.Admin)
	w.ok(err)
	t.Cleanup(wire.Cut)
	check := &lever{}
	o := w.options(wire.Config(w.identity()), check)
	o.PodSocket = podSocket(t)
	w.run(o)
	w.eventuallyOpen()
	wire.Cut()
	settings := netconf.Settings{Socket: o.PodSocket, Timeout: netconf.MaxTimeout}
	for range 2 {
		check.set(false)
		w.eventually(func() string {
			if err := hold.Status(t.Context(), settings); !strings.Contains(text(err), "down") {
				return "pods go: " + text(err)
			}
			return ""
		})
		check.set(true)
		w.ok(hold.Wait(t.Context(), settings, netconf.Pod{Namespace: "a", Name: "b"}, time.Now()))
	}
}

// allowGetPods gives the agent's account the right to get pods, for this test.
func (w *world) allowGetPods() {
	w.Helper()
	meta := metav1.ObjectMeta{Name: "nodegate-cni"}
	roles := w.admin.RbacV1()
	_, err := roles.ClusterRoles().Create(w.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{})
	w.ok(err)
	_, err = roles.ClusterRoleBindings().Create(w.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: gate.Namespace, Name: gate.AgentAccount}},
	}, metav1.CreateOptions{})
	w.ok(err)
	w.Cleanup(func() {
		w.ok(roles.ClusterRoleBindings().Delete(w.unended(), meta.Name, metav1.DeleteOptions{}))
		w.ok(roles.ClusterRoles().Delete(w.unended(), meta.Name, metav1.DeleteOptions{}))
	})
}

// TestPodKeeper: what the checks have said decides, in this process and so in this
// boot. One that wavers holds pods no earlier than it closes the gate.
func TestPodKeeper(t *testing.T) {
	bad := errors.New("broken")
	armedNode := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: governedLabels()}, Spec: corev1.NodeSpec{Taints: armed()}}
	openNode := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: governedLabels()}}
	const waits = `gate "agent" is closed: `
	for name, tc := range map[string]struct {
		node *corev1.Node
		// first and then are the answers of the check socket, which dwells.
		first, then []error
		want        string
	}{
		"nothing was asked yet":                  {want: waits + "check socket has not answered yet; check conflist has not answered yet"},
		"one has answered":                       {first: []error{nil}, want: waits + "check conflist has not answered yet"},
		"all pass, the Node was not seen yet":    {first: []error{nil, nil}},
		"all pass, the taint is still there":     {node: armedNode, first: []error{nil, nil}},
		"all pass":                               {node: openNode, first: []error{nil, nil}},
		"one fails, the Node still shows a gate": {node: openNode, first: []error{nil, bad}, want: waits + "check conflist: broken"},
		"one fails from the start":               {node: openNode, first: []error{bad, nil}, want: waits + "check socket: broken"},
		"one wavers, the gate is open":           {node: openNode, first: []error{nil, nil}, then: []error{bad}},
		"one wavers, the gate is closed":         {node: armedNode, first: []error{nil, nil}, then: []error{bad}, want: waits + "check socket: broken"},
		"one wavers, the Node was not seen yet":  {first: []error{nil, nil}, then: []error{bad}, want: waits + "check socket: broken"},
		"both fail":                              {node: armedNode, first: []error{bad, bad}, want: waits + "check socket: broken; check conflist: broken"},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := alone(t)
			if tc.node != nil {
				a.own.event(tc.node)
			}
			a.answer(tc.first...)
			a.answer(tc.then...)
			k := &podKeeper{a, func() gate.Mode { return gate.ModeEnforce }, &podLookup{node: a.name, clock: a.clock, changed: a.bell.ring,
				seen: map[netconf.Pod]sighting{}, get: func(ctx context.Context, _, _ string) (*corev1.Pod, error) { <-ctx.Done(); return nil, ctx.Err() }}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			again, reason := k.Holds(ctx, netconf.Pod{Namespace: "a", Name: "b"}, time.Now())
			if got := text(reason); got != tc.want || again {
				t.Errorf("it waits for %q, want %q", got, tc.want)
			}
		})
	}
}

// sieve is a check of which pods miss what it checks.
type sieve struct {
	lever
	reason error
	again  bool
}

func (s *sieve) missed(time.Time) (again bool, reason error) { return s.again, s.reason }

// TestPodKeeper_Missed: a pod that misses what a check is of waits although the gate
// is open, and while the check wavers; it is told to come again unless it may yet
// turn out to tolerate the gate.
func TestPodKeeper_Missed(t *testing.T) {
	a, _ := alone(t)
	check := &sieve{}
	a.gates[0].probers[0].Check = check
	a.own.event(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: governedLabels()}})
	a.answer(nil, nil)
	ordinary, tolerant, unasked := netconf.Pod{Namespace: "a", Name: "ordinary"}, netconf.Pod{Namespace: "a", Name: "tolerant"}, netconf.Pod{Namespace: "a", Name: "unasked"}
	until := a.clock.Now().Add(time.Hour)
	k := &podKeeper{a, func() gate.Mode { return gate.ModeEnforce }, &podLookup{node: a.name, clock: a.clock, seen: map[netconf.Pod]sighting{
		ordinary: {until: until}, unasked: {err: errNotAsked},
		tolerant: {passes: passes{a.gates[0].gate: true}, until: until},
	}}}
	expect := func(pod netconf.Pod, want string, wantAgain bool) {
		t.Helper()
		again, reason := k.Holds(t.Context(), pod, time.Now())
		if text(reason) != want || again != wantAgain {
			t.Errorf("%s waits for %q (again: %t), want %q (%t)", pod.Name, text(reason), again, want, wantAgain)
		}
	}
	expect(ordinary, "", false)
	const waits = `gate "agent" is closed: check socket: `
	check.reason = errors.New("missed")
	expect(ordinary, waits+"missed", false)
	a.answer(errDown) // which dwells
	expect(ordinary, waits+"missed", false)
	check.again = true
	expect(ordinary, waits+"missed", true)
	expect(unasked, waits+"missed", false)
	expect(netconf.Pod{}, waits+"missed", false) // STATUS is of no pod, and says nothing of one
	expect(tolerant, "", false)
	check.reason, check.again = nil, false
	expect(ordinary, "", false)
}

// TestPodLookup_IsBounded: a pod is asked for once at a time, an answer counts for a
// while, and what peers make up is forgotten.
func TestPodLookup_IsBounded(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	answers, asked := make(chan error), make(chan string, maxSeen+10)
	rings := make(chan struct{}, maxSeen+10)
	l := &podLookup{
		node: "n", clock: clock, turns: make(chan struct{}, podsAtOnce), seen: map[netconf.Pod]sighting{}, changed: func() { rings <- struct{}{} },
		get: func(_ context.Context, _, name string) (*corev1.Pod, error) {
			asked <- name
			return &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}, <-answers
		},
	}
	a, log := alone(t)
	l.log = a.log
	pod := netconf.Pod{Namespace: "a", Name: "b"}
	expect := func(questions int, want error) {
		t.Helper()
		if _, err := l.find(t.Context(), pod); text(err) != text(want) || len(asked) != questions {
			t.Errorf("%d questions, answer %v; want %d and %v", len(asked), err, questions, want)
		}
	}
	answer := func(err error) {
		t.Helper()
		<-asked
		answers <- err
		<-rings
	}
	for range 3 {
		if _, err := l.find(t.Context(), pod); !errors.Is(err, errNotAsked) {
			t.Error(err)
		}
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "b", nil)
	answer(forbidden)
	expect(0, forbidden)
	clock.Step(missedFor)
	_, _ = l.find(t.Context(), pod)
	answer(forbidden)
	if told := strings.Count(log.String(), "API server refuses to show pods"); told != 1 {
		t.Errorf("it was told %d times:\n%s", told, log)
	}
	clock.Step(missedFor)
	_, _ = l.find(t.Context(), pod)
	answer(nil)
	clock.Step(seenFor - 1)
	expect(0, nil)
	clock.Step(1)
	_, _ = l.find(t.Context(), pod)
	answer(nil)

	for i := range 2 * maxSeen {
		_, _ = l.find(t.Context(), netconf.Pod{Namespace: "a", Name: fmt.Sprint("p", i)})
		answer(nil)
	}
	if len(l.seen) > maxSeen {
		t.Errorf("%d pods are remembered", len(l.seen))
	}
	// Whose plugin has gone is not held to have been refused.
	gone, cancel := context.WithCancel(t.Context())
	_, _ = l.find(gone, netconf.Pod{Namespace: "a", Name: "gone"})
	<-asked
	cancel()
	answers <- context.Canceled
	<-rings
	if _, ok := l.seen[netconf.Pod{Namespace: "a", Name: "gone"}]; ok {
		t.Error("a question that was given up counts as answered")
	}
}

// TestPodLookup_ReadsFewAtOnce: whoever may create a pod decides how large it is, and
// all pods of a node come at the same time after a boot.
func TestPodLookup_ReadsFewAtOnce(t *testing.T) {
	var reading atomic.Int32
	const pods = 50
	// started has, for each pod that is read, how many are by then.
	answers, rings, started := make(chan struct{}), make(chan struct{}), make(chan int32, pods+1)
	a, _ := alone(t)
	l := &podLookup{
		node: "n", clock: a.clock, log: a.log, turns: make(chan struct{}, podsAtOnce), seen: map[netconf.Pod]sighting{}, changed: func() { rings <- struct{}{} },
		get: func(ctx context.Context, _, _ string) (*corev1.Pod, error) {
			started <- reading.Add(1)
			defer reading.Add(-1)
			select {
			case <-answers:
				return &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}
	for i := range pods {
		_, _ = l.find(t.Context(), netconf.Pod{Namespace: "a", Name: fmt.Sprint("p", i)})
	}
	var most int32
	for range podsAtOnce {
		most = max(most, <-started)
	}
	gone, cancel := context.WithCancel(t.Context())
	_, _ = l.find(gone, netconf.Pod{Namespace: "a", Name: "gone"})
	cancel() // it does not wait for its turn
	<-rings
	for range pods {
		answers <- struct{}{}
		<-rings
	}
	close(started)
	for reading := range started {
		most = max(most, reading)
	}
	if most != podsAtOnce {
		t.Errorf("%d pods are read at the same time, want %d", most, podsAtOnce)
	}
}

func TestNew_PodSocket(t *testing.T) {
	g, err := FromConfiguration(&gate.Gate{Name: "agent", Taint: gate.Taint{Key: "a/b"}, Checks: []gate.Check{{Socket: &gate.SocketCheck{Path: "/s"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/run/" + strings.Repeat("x", 90):   "has 95 bytes, at most 93",
		"/run/x/" + strings.Repeat("x", 90): "has 97 bytes, at most 93",
		"cni.sock":                          "must be an absolute path",
		"/cni.sock":                         "must be in a directory of its own",
		"/run/nodegate/cni.sock":            "",
	} {
		_, err = New(Options{Config: &rest.Config{Host: "localhost"}, NodeName: "n", Gates: []Gate{g}, PodSocket: path})
		if (err == nil) != (want == "") || !strings.Contains(text(err), want) {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
}

// TestPodPasses: which pods need not wait for a gate. Labels count only in the
// namespaces that the gate names, where not everybody may create pods.
func TestPodPasses(t *testing.T) {
	g := &gate.Gate{
		Name: "agent", Taint: gate.Taint{Key: "a/b", Value: "v", Effect: corev1.TaintEffectNoSchedule},
		Agent: gate.Agent{Namespace: "agents", PodLabels: map[string]string{"app": "opener"}},
		Checks: []gate.Check{
			{Pod: &gate.PodCheck{Namespace: "mesh", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "mesh"}}}},
			{Pod: &gate.PodCheck{Namespace: "mesh", Selector: nil}},
		},
	}
	const exists = corev1.TolerationOpExists
	seconds := int64(0)
	labelled := func(namespace, app string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{"app": app}}}
	}
	tolerating := func(tolerations ...corev1.Toleration) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: corev1.PodSpec{Tolerations: tolerations}}
	}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"nothing speaks for it":                      {tolerating(), false},
		"the agent":                                  {labelled("agents", "opener"), true},
		"the agent's label elsewhere":                {labelled("shop", "opener"), false},
		"another pod beside the agent":               {labelled("agents", "shop"), false},
		"a pod that is checked":                      {labelled("mesh", "mesh"), true},
		"its label elsewhere":                        {labelled("shop", "mesh"), false},
		"its label in the agent's namespace":         {labelled("agents", "mesh"), false},
		"another pod beside it":                      {labelled("mesh", "opener"), false},
		"it tolerates everything":                    {tolerating(corev1.Toleration{Operator: exists}), true},
		"it tolerates every NoSchedule":              {tolerating(corev1.Toleration{Operator: exists, Effect: corev1.TaintEffectNoSchedule}), true},
		"it tolerates every NoExecute":               {tolerating(corev1.Toleration{Operator: exists, Effect: corev1.TaintEffectNoExecute}), false},
		"it tolerates the key":                       {tolerating(corev1.Toleration{Key: "a/b", Operator: exists}), true},
		"it tolerates the key and value":             {tolerating(corev1.Toleration{Key: "a/b", Value: "v"}), true},
		"it tolerates another value":                 {tolerating(corev1.Toleration{Key: "a/b", Value: "w"}), false},
		"it tolerates no value":                      {tolerating(corev1.Toleration{Key: "a/b"}), false},
		"it tolerates the key's beginning":           {tolerating(corev1.Toleration{Key: "a", Operator: exists}), false},
		"it tolerates it for no time, in NoExecute":  {tolerating(corev1.Toleration{Key: "a/b", Operator: exists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}), false},
		"it tolerates it for no time, which is moot": {tolerating(corev1.Toleration{Key: "a/b", Operator: exists, Effect: corev1.TaintEffectNoSchedule, TolerationSeconds: &seconds}), true},
		"its operator is unknown":                    {tolerating(corev1.Toleration{Key: "a/b", Operator: "Like"}), false},
		"one of several tolerations":                 {tolerating(corev1.Toleration{Key: "x", Operator: exists}, corev1.Toleration{Key: "a/b", Operator: exists}), true},
	} {
		if got := podPasses(tc.pod, g); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
