package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

const chaining = head + `cni: {}
gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
  checks:
  - conflist: {pluginType: nodegate-cni}
  - {name: mesh, conflist: {pluginType: mesh-cni}}
`

// TestUninstall_Configuration: one that cannot be read is no reason to keep the rest,
// and is told from what is there.
func TestUninstall_Configuration(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	const unknown = "There is no configuration in the cluster that can be read"
	e.expect(t, codeDone, unknown, "uninstall", "--dry-run=server")
	e.installConfig(t)
	e.setConfig(t, head+"mode: sometimes\n")
	e.expect(t, codeDone, unknown, "uninstall", "--dry-run=server")
	without := []byte(`{"data":{"` + gate.ConfigMapKey + `":null}}`)
	if _, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Patch(t.Context(), gate.ConfigMapName, types.MergePatchType, without, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.expect(t, codeDone, unknown, "uninstall", "--dry-run=server")
	e.expect(t, codeFailed, "Error: ConfigMap nodegate-system/nodegate-config: there is no key "+gate.ConfigMapKey, "pause")
	e.expect(t, codeFailed, "run it as somebody who may", "uninstall", "--dry-run=server", "--as=nobody")
}

// TestUninstall_KeepConflist: without agents the own plugin would hold back every pod,
// so that it does not stay with the others. There is no agent here to take it out.
func TestUninstall_KeepConflist(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	e.installConfig(t)
	e.setConfig(t, chaining)
	e.node(t, "linux", map[string]string{corev1.LabelOSStable: "linux"})
	out, errOut, code := e.run(t, "uninstall", "--yes", "--keep-conflist", "--timeout=1s")
	said := out + errOut
	if code != codeFailed || !strings.Contains(said, "on node linux a plugin may be chained; run there: nodegate-agent unchain --plugin-type=nodegate-cni --dir=/etc/cni/net.d") ||
		strings.Contains(said, "mesh-cni") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

// TestUninstall_TaintComesBack: where a taint that was removed is set again, as by an
// API server that has not learned yet that admission is gone, it is removed again; and
// named, if that is of no use.
func TestUninstall_TaintComesBack(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	cfg, policies := policiesOf(t, checkedGate)
	// As one that nodegate does not take for its own, the policy stays.
	policies = slices.DeleteFunc(policies, func(object *unstructured.Unstructured) bool { return !strings.HasPrefix(object.GetName(), "update.") })
	for _, object := range policies {
		object.SetLabels(nil)
	}
	if err := e.cluster.Apply(t.Context(), policies); err != nil {
		t.Fatal(err)
	}
	e.node(t, "linux", map[string]string{corev1.LabelOSStable: "linux"})
	heartbeat := cfg.Gates[0].HeartbeatAnnotation()
	beat := func() {
		t.Helper()
		patch := []byte(`{"metadata": {"annotations": {"` + heartbeat + `": "x"}}}`)
		err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
			node, err := e.admin.CoreV1().Nodes().Patch(ctx, "linux", types.MergePatchType, patch, metav1.PatchOptions{})
			return err == nil && cfg.Gates[0].Armed(node), err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	beat()
	e.expect(t, codeFailed, "Remains: taint nodegate.io/agent-not-ready:NoSchedule of Node linux, which somebody sets again; "+
		"kubectl taint node linux nodegate.io/agent-not-ready:NoSchedule-", "uninstall", "--yes")
	beat()
	learned := make(chan error, 1)
	go func() {
		err := cluster.Await(t.Context(), func(ctx context.Context) (bool, error) {
			node, err := e.admin.CoreV1().Nodes().Get(ctx, "linux", metav1.GetOptions{})
			return err == nil && node.Annotations[heartbeat] == "", err
		})
		bindings := e.admin.AdmissionregistrationV1().MutatingAdmissionPolicyBindings()
		learned <- errors.Join(err, bindings.Delete(t.Context(), policies[0].GetName(), metav1.DeleteOptions{}))
	}()
	e.expect(t, codeDone, "nothing of it is left", "uninstall", "--yes")
	if err := <-learned; err != nil {
		t.Error(err)
	}
	node, err := e.admin.CoreV1().Nodes().Get(t.Context(), "linux", metav1.GetOptions{})
	if err != nil || cfg.Gates[0].Armed(node) {
		t.Errorf("it is armed (%v)", err)
	}
}

// TestUninstall_FormerGates: what gates left on Nodes that are not configured any more
// goes, too, and nothing of anybody else.
func TestUninstall_FormerGates(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t)
	e.installConfig(t)
	e.setConfig(t, checkedGate)
	noted := []byte(`{"metadata":{"annotations":{"` + gate.RetiredAnnotation + `":"old=example.com/old"}}}`)
	if _, err := e.admin.CoreV1().ConfigMaps(gate.Namespace).Patch(t.Context(), gate.ConfigMapName, types.MergePatchType, noted, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.node(t, "linux", map[string]string{corev1.LabelOSStable: "linux"})
	e.mark(t, "linux", []string{"example.com/old", "example.com/other"}, gate.HeartbeatPrefix+"old")
	e.expect(t, codeFailed, "1 Nodes cleaned", "uninstall", "--yes", "--timeout=5s") // nothing ends the namespace here
	if carried := e.carried(t, "linux"); strings.Contains(carried, "old") || !strings.Contains(carried, "example.com/other") {
		t.Errorf("the Node carries %s", carried)
	}
}
