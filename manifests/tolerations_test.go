package manifests_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// tolerated is how long a taint is tolerated, as scheduler and eviction see it: nil
// for ever, 0 not at all.
func tolerated(tolerations []corev1.Toleration, taint corev1.Taint) *int64 {
	if !corev1helpers.TolerationsTolerateTaint(logr.Discard(), tolerations, &taint, true) {
		return new(int64(0))
	}
	var least *int64
	for i := range tolerations {
		seconds := tolerations[i].TolerationSeconds
		if tolerations[i].ToleratesTaint(logr.Discard(), &taint, true) && seconds != nil && (least == nil || *seconds < *least) {
			least = seconds
		}
	}
	return least
}

// configurations are of every kind that is rendered.
func configurations(t *testing.T) map[string]string {
	t.Helper()
	const head = "apiVersion: nodegate.io/v1alpha1\nkind: Configuration\n"
	texts := map[string]string{
		"the example": baseConfig(t),
		"several gates, of others' keys": head + `gates:
- {name: ebs, taint: {key: ebs.csi.aws.com/agent-not-ready}, checks: [{http: {port: 1}}]}
- {name: startup, taint: {key: startup-taint.cluster-autoscaler.kubernetes.io/mesh, value: "true"}, checks: [{http: {port: 2}}]}
- {name: ready, taint: {key: readiness.k8s.io/network, value: pending}, checks: [{http: {port: 3}}], nodeSelector: {matchLabels: {pool: blue}}}
- {name: other, taint: {key: example.com/other}, agent: {namespace: other}}
`,
		"with nodegate-cni": head + "cni: {}\ngates: [{name: a, taint: {key: a/b}, checks: [{conflist: {pluginType: nodegate-cni}}, {name: mesh, conflist: {pluginType: mesh-cni}}]}]\n",
	}
	for _, profile := range []string{"aether", "cilium"} {
		text, err := os.ReadFile("profiles/" + profile + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		texts["profile "+profile] = string(text)
	}
	return texts
}

// allPods are the pods of the workloads, in each form, and of what takes plugins out.
func allPods(t *testing.T, config string) map[string]corev1.PodSpec {
	t.Helper()
	pods := map[string]corev1.PodSpec{}
	for _, mutation := range []manifests.Mutation{manifests.ByPolicy, manifests.ByWebhook, manifests.ByWebhookWithCertManager} {
		for name, template := range templates(t, manifests.Options{Config: config, Mutation: mutation}) {
			pods[fmt.Sprintf("%s, %s", name, mutation)] = template.Spec
		}
	}
	cfg, err := gate.ParseConfiguration([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	object, err := manifests.Unchaining(cfg, "image")
	if err != nil {
		t.Fatal(err)
	}
	if object != nil {
		var set appsv1.DaemonSet
		convert(t, object, &set)
		pods["unchain"] = set.Spec.Template.Spec
	}
	return pods
}

// TestWorkloads_TolerateEveryGate: nothing of nodegate waits for a gate, whatever its
// taint is, and the controller leaves a node that does not answer.
func TestWorkloads_TolerateEveryGate(t *testing.T) {
	texts := configurations(t)
	var taints []corev1.Taint
	for name, text := range texts {
		cfg, err := gate.ParseConfiguration([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, g := range cfg.Gates {
			taints = append(taints, corev1.Taint{Key: g.Taint.Key, Value: g.Taint.Value, Effect: g.Taint.Effect})
		}
	}
	for _, key := range []string{
		gate.DefaultTaintKey, corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeNetworkUnavailable,
		corev1.TaintNodeDiskPressure, "node-role.kubernetes.io/control-plane", "node.cloudprovider.kubernetes.io/uninitialized",
	} {
		taints = append(taints, corev1.Taint{Key: key, Value: "value", Effect: corev1.TaintEffectNoSchedule})
	}
	for name, text := range texts {
		for pod, spec := range allPods(t, text) {
			for _, taint := range taints {
				if seconds := tolerated(spec.Tolerations, taint); seconds != nil {
					t.Errorf("%s: %s tolerates %s for %d s only", name, pod, taint.ToString(), *seconds)
				}
			}
			expectStays(t, name+": "+pod, spec)
		}
	}
}

// expectStays: agents stay on their nodes whatever befalls these; a controller leaves
// one that does not answer after 30 s, and any other that evicts pods.
func expectStays(t *testing.T, name string, pod corev1.PodSpec) {
	t.Helper()
	controller := pod.ServiceAccountName == gate.ControllerAccount
	for key, seconds := range map[string]int64{corev1.TaintNodeNotReady: 30, corev1.TaintNodeUnreachable: 30, corev1.TaintNodeOutOfService: 0, "example.com/other": 0} {
		got := tolerated(pod.Tolerations, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		if controller && (got == nil || *got != seconds) || !controller && got != nil {
			t.Errorf("%s tolerates %s, which evicts, for %v s", name, key, got)
		}
	}
}
