package agent

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/conflist"
)

// ConflistCheck passes while the plugin is chained in the CNI configuration that
// the node's runtime loads, exactly once and behind the main plugin, and its
// binary is in place. Which file that is depends on the runtime, which the Node
// names unless the check does; with one whose rules are not known nothing is
// chained.
func ConflistCheck(c gate.ConflistCheck) Check { return conflistCheck(c) }

type conflistCheck gate.ConflistCheck

// Check implements [Check].
func (c conflistCheck) Check(_ context.Context, node *corev1.Node) error {
	if c.Disabled {
		return nil
	}
	if node == nil {
		return ErrNoNode
	}
	runtime, err := conflist.ParseRuntime(cmp.Or(c.Runtime, node.Status.NodeInfo.ContainerRuntimeVersion))
	if err != nil {
		return err
	}
	o := conflist.Options{Dir: c.Dir, Plugin: c.PluginType, Runtime: runtime, Network: c.Network, BinDir: c.BinDir}
	if r := conflist.Read(o, conflist.Known{}); r.Verdict != conflist.OK {
		return r.Reason
	}
	return conflist.VerifyBinary(c.BinDir, c.PluginType)
}
