package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const chaining = head + `cni: {}
gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
  checks:
  - conflist: {pluginType: nodegate-cni}
  - {name: mesh, conflist: {pluginType: mesh-cni}}
`

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
