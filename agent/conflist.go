package agent

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/agent/internal/conflist"
	"github.com/nodegate/nodegate/gate"
)

// containerd is the scheme by which a Node names this runtime.
const containerd = "containerd://"

// ConflistCheck passes while the plugin is chained in the CNI configuration that
// the node's runtime loads, exactly once and behind the main plugin, and its
// binary is in place. Which file that is depends on the runtime, which the Node
// names; with one whose rules are not known nothing is chained.
func ConflistCheck(c gate.ConflistCheck) Check { return conflistCheck(c) }

type conflistCheck gate.ConflistCheck

// Check implements [Check].
func (c conflistCheck) Check(_ context.Context, node *corev1.Node) error {
	if node == nil {
		return ErrNoNode
	}
	if runtime := node.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(runtime, containerd) {
		return fmt.Errorf("the Node's runtime is %q: which CNI configuration it loads is not known", runtime)
	}
	if err := conflist.Verify(c.Dir, c.PluginType); err != nil {
		return err
	}
	return conflist.VerifyBinary(c.BinDir, c.PluginType)
}
