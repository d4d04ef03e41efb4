//go:build unix

package profiles

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/world"
)

var aetherLabels = map[string]string{"app.kubernetes.io/name": "aether-agent"}

func TestAether(t *testing.T) {
	w := play(t, "aether.yaml")
	runDaemonSet(t, w, "aether-system", "aether-agent", aetherLabels)
	node := newNode(t, w, "node-a")
	unready := func(*corev1.Pod) bool { return false }
	node.SetReadiness(unready)
	must(t, node.Boot())
	await(t, node, 0, "Ready and closed by the gate alone", func(n *corev1.Node) bool {
		return world.Ready(n) && len(n.Spec.Taints) == 1 && w.Gate.Armed(n)
	})

	t.Log("what Aether's identity comes from is scheduled, a workload is not")
	runPod(t, w, "workload")
	for name, tolerations := range spireTolerations(t) {
		runPod(t, w, name, tolerations...)
		awaitPod(t, w, name, corev1.ConditionTrue)
	}
	awaitPod(t, w, "workload", corev1.ConditionFalse)

	t.Log("Aether's remover finds its socket and takes the taint away, while nothing calls that socket")
	must(t, node.Serve(), node.StartAgent(t.Context()))
	for range 3 {
		removed, err := changeTaints(t.Context(), w, node, w.Gate.WithoutTaint)
		if must(t, err); !w.Gate.Armed(removed) {
			t.Fatal("the write that removed the taint came out without it")
		}
	}

	t.Log("the plugin is chained, and Aether's agent is Ready")
	from := node.History.Len()
	node.SetReadiness(func(*corev1.Pod) bool { return true })
	must(t, node.Chain())
	await(t, node, from, "open", w.Open)
	awaitPod(t, w, "workload", corev1.ConditionTrue)

	t.Log("another CNI copies its list over: the entry comes back, and the gate stays open")
	from = node.History.Len()
	_, err := node.Overwrite(100 * time.Millisecond)
	must(t, err)
	_, err = node.AwaitChained(t.Context())
	must(t, err)
	if n := turns(w, node, from); n != 0 {
		t.Errorf("the taint came or went %d times", n)
	}

	t.Log("SPIRE is away for too long: Aether's agent is not Ready, and Aether's guard arms as well")
	from = node.History.Len()
	node.SetReadiness(unready)
	await(t, node, from, "armed", w.Gate.Armed)
	_, err = changeTaints(t.Context(), w, node, w.Gate.WithTaint)
	must(t, err)
	node.SetReadiness(func(*corev1.Pod) bool { return true })
	from = await(t, node, from, "armed", w.Gate.Armed)
	await(t, node, from, "open", w.Open)
	if n := turns(w, node, from); n != 1 {
		t.Errorf("the taint came or went %d times, want 1, the opening", n)
	}

	t.Log("a list in which nothing can be chained")
	from = node.History.Len()
	must(t, node.Strip())
	from = await(t, node, from, "armed", w.Gate.Armed)
	must(t, node.Unstrip())
	await(t, node, from, "open", w.Open)

	t.Log("a reboot, after which the kubelet registers no taint and Aether's agent is late")
	from = node.History.Len()
	node.Crash()
	node.SetReadiness(unready)
	must(t, node.Boot())
	from = await(t, node, from, "armed", w.Gate.Armed)
	node.SetReadiness(func(*corev1.Pod) bool { return true })
	must(t, node.Serve(), node.StartAgent(t.Context()))
	await(t, node, from, "open", w.Open)
}

// TestAether_RollStalls: a roll of the agents stops at a node that does not serve,
// and the kill switch, which needs no roll, sets it going again.
func TestAether_RollStalls(t *testing.T) {
	w := play(t, "aether.yaml")
	runDaemonSet(t, w, "aether-system", "aether-agent", aetherLabels)
	sick, well := newNode(t, w, "node-a"), newNode(t, w, "node-b")
	for _, node := range []*world.Node{sick, well} {
		must(t, node.Chain(), node.Boot(), node.Serve(), node.StartAgent(t.Context()))
		await(t, node, 0, "open", w.Open)
		must(t, node.AwaitAgentReady(t.Context()))
	}
	from := sick.History.Len()
	must(t, sick.Strip())
	await(t, sick, from, "armed", w.Gate.Armed)

	awaitRoll(t, w, "to see that an agent is not ready", func(s appsv1.DaemonSetStatus) bool { return s.NumberUnavailable == 1 })

	calm := well.History.Len()
	changed := roll(t, w)
	renew(t, sick)
	awaitRoll(t, w, "to replace the agent that is not ready, and no other", func(s appsv1.DaemonSetStatus) bool {
		return s.ObservedGeneration >= changed && s.UpdatedNumberScheduled == 1 && s.NumberUnavailable == 1
	})

	from = sick.History.Len()
	must(t, sick.Configure(func(check *gate.Check) {
		shortDwell(check)
		if check.Conflist != nil {
			check.Conflist.Disabled = true
		}
	}))
	await(t, sick, from, "open", w.Open)
	renew(t, well)
	awaitRoll(t, w, "to reach the other node", func(s appsv1.DaemonSetStatus) bool {
		return s.UpdatedNumberScheduled == 2 && s.NumberUnavailable == 0
	})
	if n := turns(w, well, calm); n != 0 {
		t.Errorf("the taint of the node that served all the time came or went %d times", n)
	}
}

// roll changes the template of nodegate's agents and returns its generation.
func roll(t *testing.T, w *world.World) int64 {
	t.Helper()
	patch := `{"spec":{"template":{"metadata":{"annotations":{"example.com/roll":"1"}}}}}`
	changed, err := w.Admin.AppsV1().DaemonSets(gate.Namespace).
		Patch(t.Context(), gate.AgentAccount, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
	return changed.Generation
}

// renew runs the agent anew in the pod by which the roll replaces its present one.
func renew(t *testing.T, node *world.Node) {
	t.Helper()
	must(t, node.AwaitAgentReplaced(t.Context()))
	node.StopAgent()
	must(t, node.StartAgent(t.Context()))
}

// awaitRoll waits for the DaemonSet controller to say something of the agents.
func awaitRoll(t *testing.T, w *world.World, what string, condition func(appsv1.DaemonSetStatus) bool) {
	t.Helper()
	var last appsv1.DaemonSetStatus
	err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
		set, err := w.Admin.AppsV1().DaemonSets(gate.Namespace).Get(ctx, gate.AgentAccount, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		last = set.Status
		return condition(last), nil
	})
	if err != nil {
		t.Fatalf("waiting for the DaemonSet controller %s: %v; it says %+v", what, err, last)
	}
}

// spireTolerations are those that the guide tells to set, by the part of SPIRE's
// chart that they are for.
func spireTolerations(t *testing.T) map[string][]corev1.Toleration {
	t.Helper()
	guide, err := os.ReadFile("../../docs/configure.md")
	must(t, err)
	for _, block := range strings.Split(string(guide), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if !strings.HasPrefix(block, "spire-agent:") {
			continue
		}
		var values map[string]struct{ Tolerations []corev1.Toleration }
		must(t, yaml.UnmarshalStrict([]byte(block), &values))
		found := map[string][]corev1.Toleration{}
		for part, value := range values {
			found[part] = value.Tolerations
		}
		if len(found) != 3 {
			t.Fatalf("the guide names %d parts of SPIRE", len(found))
		}
		return found
	}
	t.Fatal(fmt.Errorf("the guide says nothing of SPIRE"))
	return nil
}
