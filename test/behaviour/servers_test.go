package behaviour

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

// TestServers_OneWithoutPolicies: of two API servers over one etcd one has no
// admission of ours, as while it learns of the policies, or where it is of an older
// version. What is removed through it is open, until the guard has seen it.
func TestServers_OneWithoutPolicies(t *testing.T) {
	inEachForm(t, func(t *testing.T, e *environment) {
		e.install(t)
		e.createDaemonSet(t)
		config, err := e.cluster.StartAnother(
			cluster.WithoutAdmission("MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy"))
		if err != nil {
			t.Fatal(err)
		}
		unprotected, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		for what, heartbeat := range map[string]func(*corev1.Node) map[string]any{
			"absent": func(*corev1.Node) map[string]any { return nil },
			"not-ready": func(n *corev1.Node) map[string]any {
				return e.heartbeat(t, n, time.Now(), func(hb *gate.Heartbeat) { hb.Ready = false })
			},
			"other-boot": func(n *corev1.Node) map[string]any {
				return e.heartbeat(t, n, time.Now(), func(hb *gate.Heartbeat) { hb.BootID = nextBoot })
			},
			"expired": func(n *corev1.Node) map[string]any { return e.heartbeat(t, n, time.Now().Add(-time.Hour)) },
		} {
			t.Run(what, func(t *testing.T) {
				node := e.create(t, what)
				e.patch(t, e.admin, node.Name, label(agentRuns, "true"))
				if merge := heartbeat(node); merge != nil {
					e.patch(t, e.admin, node.Name, merge)
				}
				e.removeThroughBoth(t, node.Name, unprotected)
			})
		}
	})
}

// removeThroughBoth: by whichever the taint is removed, the Node ends closed.
func (e *environment) removeThroughBoth(t *testing.T, name string, unprotected kubernetes.Interface) {
	t.Helper()
	const rounds = 10
	removal := map[string]any{"spec": map[string]any{"taints": nil}}
	var open []time.Duration
	for range rounds {
		if kept := e.patch(t, e.admin, name, removal); !e.gate.Armed(kept) {
			t.Fatal("the API server with admission lets the taint be removed")
		}
		removed := e.patch(t, unprotected, name, removal)
		began := time.Now()
		if e.gate.Armed(removed) {
			t.Fatal("the API server without admission puts the taint back: this test shows nothing")
		}
		if armed := next(t, e.watch(t, removed)); !e.gate.Armed(armed) {
			t.Fatalf("the next write of the open node was not the guard's: %v", armed.ManagedFields)
		}
		open = append(open, time.Since(began))
	}
	slices.Sort(open)
	t.Logf("open through the other API server until the guard had armed it: p50 %s, at most %s", open[rounds/2], open[rounds-1])
}
