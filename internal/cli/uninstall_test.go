package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
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
