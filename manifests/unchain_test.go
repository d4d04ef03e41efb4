package manifests_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// TestUnchaining: the pod that takes plugins out has nothing that it does not need,
// runs where the agents do, and is no agent.
func TestUnchaining(t *testing.T) {
	cfg, err := gate.ParseConfiguration([]byte(baseConfig(t) + "  - {name: a, conflist: {pluginType: mesh-cni}}\n" +
		"  - {name: b, conflist: {pluginType: other-cni, dir: /etc/other/net.d, entryFile: /etc/other/net.d/.kept}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	object, err := manifests.Unchaining(cfg, "image")
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	convert(t, object, &set)
	pod := set.Spec.Template.Spec
	var args, paths []string
	for _, container := range pod.InitContainers {
		args = append(args, strings.Join(container.Args, " "))
	}
	for _, volume := range pod.Volumes {
		paths = append(paths, volume.HostPath.Path)
	}
	if want := []string{"unchain --plugin-type=mesh-cni --dir=/etc/cni/net.d",
		"unchain --plugin-type=other-cni --dir=/etc/other/net.d --entry-file=/etc/other/net.d/.kept"}; !slices.Equal(args, want) {
		t.Errorf("it runs %q, want %q", args, want)
	}
	if want := []string{"/etc/cni/net.d", "/etc/other/net.d"}; !slices.Equal(paths, want) {
		t.Errorf("it sees %q of the host, want %q", paths, want)
	}
	if *pod.AutomountServiceAccountToken || tolerated(pod.Tolerations, corev1.Taint{Key: "a/b", Effect: corev1.TaintEffectNoExecute}) != nil {
		t.Errorf("it has a token: %t, tolerations %v", *pod.AutomountServiceAccountToken, pod.Tolerations)
	}
	done := &corev1.Pod{Spec: pod, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}}}
	agent := done.DeepCopy()
	agent.Spec.InitContainers = nil
	if !manifests.Unchained(done) || manifests.Unchained(agent) || manifests.Unchained(&corev1.Pod{Spec: pod}) {
		t.Error("a pod that has done it is not told from others")
	}
	if none, err := manifests.Unchaining(manifests.OwnPlugin(cfg), "image"); none != nil || err != nil {
		t.Errorf("of others alone: %v (%v)", none, err)
	}
	if none, err := manifests.Unchaining(gate.Default(), "image"); none != nil || err != nil {
		t.Errorf("without a list: %v (%v)", none, err)
	}
}

// TestGateOf: the taint's key is read from the policies that are rendered.
func TestGateOf(t *testing.T) {
	cfg, err := gate.ParseConfiguration([]byte("apiVersion: nodegate.io/v1alpha1\nkind: Configuration\ngates: [{name: mesh, taint: {key: example.com/mesh}}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := manifests.ValidationPolicies(cfg)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, object := range objects {
		name, key := manifests.GateOf(object)
		if name != "mesh" {
			t.Errorf("%s is of gate %q", object.GetName(), name)
		}
		found[key] = true
	}
	if !found["example.com/mesh"] || len(found) != 2 {
		t.Errorf("keys %v", found)
	}
}
