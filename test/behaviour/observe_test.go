package behaviour

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/guard"
	"github.com/nodegate/nodegate/test/cluster"
)

const (
	// scenes is how many Nodes something happens to: each kind once, and then some.
	scenes = 40
	// long is the longest that a heartbeat may be worth: longer than the test.
	long = gate.MaxTTL
)

// TestObserve_CountsTheTruth: many kinds of things happen to Nodes while the mode is
// observe. What is counted is what should have been armed, by reason, exactly;
// nothing is armed; and it is what is armed as soon as the mode is enforce.
func TestObserve_CountsTheTruth(t *testing.T) {
	inEachForm(t, func(t *testing.T, e *environment) {
		metrics := e.install(t)
		e.createDaemonSet(t)
		stage := e.stage(t)
		e.nodegate(t, "observe")
		judged := e.judgedByWebhook(t)

		truth := map[string]int{}
		for _, s := range stage {
			s.play(t, e, s.node)
			if s.reason != "" {
				truth[fmt.Sprintf("/%s/%s", e.gate.Name, s.reason)]++
			}
		}
		t.Logf("the truth: %v", truth)
		e.expectCounted(t, metrics, "nodegate_guard_would_arm_total", truth)
		if armed := counts(t, metrics.Register, "nodegate_guard_armed_total"); len(armed) > 0 {
			t.Errorf("the guard has armed %v", armed)
		}
		if diff := cmp.Diff(judged, e.judgedByWebhook(t)); diff != "" {
			t.Errorf("the webhook was asked, -before +after:\n%s", diff)
		}
		for _, s := range stage {
			s.expectArmed(t, e, s.stays)
		}

		e.nodegate(t, "resume")
		e.expectCounted(t, metrics, "nodegate_guard_armed_total", truth)
		e.expectCounted(t, metrics, "nodegate_guard_would_arm_total", truth)
		for _, s := range stage {
			s.expectArmed(t, e, s.stays || s.reason != "")
		}
	})
}

// scene is something that happens to a Node, which is closed before.
type scene struct {
	what string
	// reason is why the Node should be armed; empty if it should not.
	reason guard.Reason
	// silent says that an agent should run there, so that its silence counts.
	silent bool
	// stays says that the taint is not removed.
	stays bool
	play  func(*testing.T, *environment, *corev1.Node)

	node *corev1.Node
}

// scenesOfEachKind are those that there are.
func scenesOfEachKind() []scene {
	return []scene{
		{what: "removed without a heartbeat", reason: guard.Absent, play: remove},
		{what: "removed again and again", reason: guard.Absent, play: removeAgain},
		{what: "removed with a malformed heartbeat", reason: guard.Malformed, play: func(t *testing.T, e *environment, n *corev1.Node) {
			e.patch(t, e.admin, n.Name, annotate(e.gate.HeartbeatAnnotation(), "v=1 ready=perhaps"))
			remove(t, e, n)
		}},
		{what: "removed with another node's heartbeat", reason: guard.OtherNode, play: removedWith(0, func(hb *gate.Heartbeat) { hb.NodeUID = boot })},
		{what: "removed with another boot's heartbeat", reason: guard.OtherBoot, play: removedWith(0, func(hb *gate.Heartbeat) { hb.BootID = nextBoot })},
		{what: "removed while not ready", reason: guard.NotReady, play: removedWith(0, func(hb *gate.Heartbeat) { hb.Ready = false })},
		{what: "removed with a heartbeat of tomorrow", reason: guard.FromFuture, play: removedWith(24 * time.Hour)},
		{what: "removed with an old heartbeat", reason: guard.Expired, silent: true, play: removedWith(-time.Hour)},
		{what: "opened, then falls silent", reason: guard.Expired, silent: true, play: func(t *testing.T, e *environment, n *corev1.Node) {
			open(t, e, n, 0, func(hb *gate.Heartbeat) { hb.TTL = 2 * time.Second })
		}},
		{what: "opened, then its agent is gone", reason: guard.AgentAbsent, silent: true, play: func(t *testing.T, e *environment, n *corev1.Node) {
			// As of before the guard has begun to miss the agent.
			open(t, e, n, -long/2)
		}},
		{what: "opened, then reboots", reason: guard.OtherBoot, play: func(t *testing.T, e *environment, n *corev1.Node) {
			open(t, e, n, 0)
			e.patch(t, e.admin, n.Name, map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"bootID": nextBoot}}}, "status")
		}},
		{what: "opened, then not ready", reason: guard.NotReady, play: func(t *testing.T, e *environment, n *corev1.Node) {
			open(t, e, n, 0)
			e.patch(t, e.admin, n.Name, e.heartbeat(t, n, time.Now(), func(hb *gate.Heartbeat) { hb.Ready = false }))
		}},
		{what: "opened, then the heartbeat is dropped", reason: guard.Absent, play: func(t *testing.T, e *environment, n *corev1.Node) {
			open(t, e, n, 0)
			e.patch(t, e.admin, n.Name, map[string]any{"metadata": map[string]any{"annotations": map[string]any{e.gate.HeartbeatAnnotation(): nil}}})
		}},
		{what: "created anew", reason: guard.Absent, play: func(t *testing.T, e *environment, n *corev1.Node) {
			if err := e.admin.CoreV1().Nodes().Delete(t.Context(), n.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			e.create(t, n.Name)
		}},
		{what: "opened, and serves", play: func(t *testing.T, e *environment, n *corev1.Node) { open(t, e, n, 0) }},
		{what: "opened, and nobody expects an agent there", play: func(t *testing.T, e *environment, n *corev1.Node) {
			open(t, e, n, 0, func(hb *gate.Heartbeat) { hb.TTL = time.Second })
		}},
		{what: "bypassed", play: func(t *testing.T, e *environment, n *corev1.Node) {
			e.patch(t, e.admin, n.Name, e.bypass(t, time.Now().Add(time.Hour)))
			remove(t, e, n)
		}},
		{what: "exempt", play: func(t *testing.T, e *environment, n *corev1.Node) {
			e.patch(t, e.admin, n.Name, label(gate.ExemptLabel, "true"))
			remove(t, e, n)
		}},
		{what: "left as it is, though not ready", stays: true, play: func(t *testing.T, e *environment, n *corev1.Node) {
			e.patch(t, e.admin, n.Name, e.heartbeat(t, n, time.Now(), func(hb *gate.Heartbeat) { hb.Ready = false }))
		}},
	}
}

const nextBoot = "11111111-35f2-44b5-bea4-72f10b303c45"

func label(key, value string) map[string]any {
	return map[string]any{"metadata": map[string]any{"labels": map[string]any{key: value}}}
}

func remove(t *testing.T, e *environment, n *corev1.Node) {
	t.Helper()
	if after := e.patch(t, e.admin, n.Name, map[string]any{"spec": map[string]any{"taints": nil}}); e.gate.Armed(after) {
		t.Errorf("node %s: the taint was put back", n.Name)
	}
}

// removeAgain: it is one trouble, however often it is seen.
func removeAgain(t *testing.T, e *environment, n *corev1.Node) {
	t.Helper()
	for range 3 {
		remove(t, e, n)
		e.patch(t, e.admin, n.Name, map[string]any{"spec": map[string]any{"taints": e.gate.WithTaint(nil)}})
	}
	remove(t, e, n)
}

// removedWith: a heartbeat first, of so much ahead of now, and then the removal.
func removedWith(ahead time.Duration, changes ...func(*gate.Heartbeat)) func(*testing.T, *environment, *corev1.Node) {
	return func(t *testing.T, e *environment, n *corev1.Node) {
		t.Helper()
		e.patch(t, e.admin, n.Name, e.heartbeat(t, n, time.Now().Add(ahead), changes...))
		remove(t, e, n)
	}
}

// open opens as an agent does, in one write.
func open(t *testing.T, e *environment, n *corev1.Node, ahead time.Duration, changes ...func(*gate.Heartbeat)) {
	t.Helper()
	changes = append([]func(*gate.Heartbeat){func(hb *gate.Heartbeat) { hb.TTL = long }}, changes...)
	merge := e.heartbeat(t, n, time.Now().Add(ahead), changes...)
	merge["spec"] = map[string]any{"taints": nil}
	if after := e.patch(t, e.admin, n.Name, merge); e.gate.Armed(after) {
		t.Errorf("node %s: the agent cannot open it", n.Name)
	}
}

// stage is what will happen, in no order, and the Nodes for it.
func (e *environment) stage(t *testing.T) []scene {
	t.Helper()
	random := rand.New(rand.NewPCG(4, 2)) // any will do, and the same again is good for finding faults
	kinds := scenesOfEachKind()
	stage := scenesOfEachKind()
	for len(stage) < scenes {
		stage = append(stage, kinds[random.IntN(len(kinds))])
	}
	random.Shuffle(len(stage), func(i, j int) { stage[i], stage[j] = stage[j], stage[i] })
	for i := range stage {
		s := &stage[i]
		s.node = e.create(t, fmt.Sprintf("scene-%d", i))
		if s.silent {
			s.node = e.patch(t, e.admin, s.node.Name, label(agentRuns, "true"))
		}
		if !e.gate.Armed(s.node) {
			t.Fatalf("node %s was born open", s.node.Name)
		}
	}
	return stage
}

func (s *scene) expectArmed(t *testing.T, e *environment, want bool) {
	t.Helper()
	if armed := e.gate.Armed(e.stored(t, s.node.Name)); armed != want {
		t.Errorf("node %s, %s: armed is %t", s.node.Name, s.what, armed)
	}
}

// agentRuns is the label of the Nodes where an agent should run.
const agentRuns = "example.com/agent-runs"

// createDaemonSet creates the agent's, of which no pod ever runs.
func (e *environment) createDaemonSet(t *testing.T) {
	t.Helper()
	agent := e.gate.Agent.PodLabels
	_, err := e.admin.AppsV1().DaemonSets(gate.Namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: agent},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: agent},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{agentRuns: "true"},
					Containers:   []corev1.Container{{Name: "agent", Image: "agent"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// judgedByWebhook is what the webhook says that it has judged.
func (e *environment) judgedByWebhook(t *testing.T) map[string]int {
	t.Helper()
	if e.webhook == nil {
		return nil
	}
	return counts(t, e.webhook.Metrics.Register, "nodegate_webhook_decisions_total")
}

// expectCounted waits until a counter of the guard's tells the truth.
func (e *environment) expectCounted(t *testing.T, metrics *guard.Metrics, name string, truth map[string]int) {
	t.Helper()
	var diff string
	err := cluster.Await(t.Context(), func(context.Context) (bool, error) {
		diff = cmp.Diff(truth, counts(t, metrics.Register, name))
		return diff == "", nil
	})
	if err != nil {
		t.Errorf("%s: %v, -truth +counted:\n%s", name, err, diff)
	}
}
