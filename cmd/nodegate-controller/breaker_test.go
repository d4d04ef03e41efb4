package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
)

// TestController_TheBreakerSurvivesItsLeader: the leader is killed when its breaker
// has tripped. The one that follows knows what was armed, says so, arms no more, and
// resumes by itself.
func TestController_TheBreakerSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	const silent, limit = 10, 4
	e := newEnvironment(t)
	e.create(t, agentDaemonSet())
	var nodes []*corev1.Node
	for i := range silent {
		nodes = append(nodes, e.silentNode(t, fmt.Sprintf("silent-%d", i)))
	}
	first := e.start(t)
	e.awaitBreaker(t, "tripped=true")

	second := e.start(t)
	holder := e.holder(t)
	if err := first.end(t, os.Kill); err == nil {
		t.Error("a killed process ended well")
	}
	eventually(t, "another holder of the Lease", func(context.Context) bool { return e.holder(t) != holder })
	eventually(t, "the next leader to have looked at those that wait", func(ctx context.Context) bool {
		return second.counts(ctx, `controller_runtime_reconcile_total{controller="guard",result="requeue_after"}`) >= silent-limit
	})
	if armed := e.countArmed(t, nodes); armed > limit {
		t.Errorf("%d Nodes are armed, want %d", armed, limit)
	}
	eventually(t, "the next leader to say that the breaker has tripped", func(ctx context.Context) bool {
		return second.counts(ctx, `nodegate_guard_breaker_tripped{gate="agent"}`) == 1 && strings.Contains(second.log.String(), "The breaker has tripped")
	})
	if value := e.breaker(t); !strings.HasPrefix(value, fmt.Sprintf("armed=%d limit=%d tripped=true window=", limit, limit)) {
		t.Errorf("the Lease tells %q", value)
	}

	// In a larger fleet it is not too many. These show evidence, and do not count.
	for i := range 2 * silent {
		e.bareNode(t, fmt.Sprintf("more-%d", i))
	}
	eventually(t, "all to be armed", func(context.Context) bool { return e.countArmed(t, nodes) == silent })
	e.awaitBreaker(t, fmt.Sprintf("limit=%d tripped=false", 3*limit))
}

// agentDaemonSet is that of the agents.
func agentDaemonSet() *appsv1.DaemonSet {
	labels := map[string]string{gate.AgentLabel: gate.AgentLabelValue}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: gate.AgentAccount, Namespace: gate.Namespace},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
			},
		},
	}
}

// silentNode is open, by the heartbeat of an agent that writes no other.
func (e *environment) silentNode(t *testing.T, name string) *corev1.Node {
	t.Helper()
	const boot = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	e.create(t, node)
	node.Status.NodeInfo.BootID = boot
	if err := e.admin.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	value, err := gate.Heartbeat{
		Ready: true, Time: time.Now().Truncate(time.Second), TTL: 5 * time.Second, BootID: boot, NodeUID: node.UID,
	}.Format()
	if err != nil {
		t.Fatal(err)
	}
	node.Annotations = map[string]string{gate.DefaultGate().HeartbeatAnnotation(): value}
	node.Labels = map[string]string{corev1.LabelOSStable: "linux"}
	if err := e.admin.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	return node
}

func (e *environment) countArmed(t *testing.T, nodes []*corev1.Node) int {
	t.Helper()
	armed := 0
	for _, node := range nodes {
		if err := e.admin.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
			t.Fatal(err)
		}
		if gate.DefaultGate().Armed(node) {
			armed++
		}
	}
	return armed
}

func (e *environment) awaitBreaker(t *testing.T, want string) {
	t.Helper()
	eventually(t, "the Lease to tell "+want, func(context.Context) bool { return strings.Contains(e.breaker(t), want) })
}

// breaker is what the Lease tells of it.
func (e *environment) breaker(t *testing.T) string {
	t.Helper()
	var lease coordinationv1.Lease
	key := client.ObjectKey{Namespace: gate.Namespace, Name: gate.ControllerLease}
	if err := client.IgnoreNotFound(e.admin.Get(t.Context(), key, &lease)); err != nil {
		t.Fatal(err)
	}
	return lease.Annotations[gate.BreakerPrefix+gate.DefaultName]
}

// counts is the value of a series, or 0.
func (r *replica) counts(ctx context.Context, series string) float64 {
	_, metrics := get(ctx, "http://"+r.metrics+"/metrics")
	for line := range strings.Lines(metrics) {
		var value float64
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			_, _ = fmt.Sscan(rest, &value)
			return value
		}
	}
	return 0
}
