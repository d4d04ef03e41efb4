package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op   string `json:"op"`
	Path string `json:"path"`
	// Value is left out by a removal and must not be by a test for null.
	Value *json.RawMessage `json:"value,omitempty"`
}

// nodePatch is one write to a Node. Its tests make the API server apply it to no
// Node but the one it was made for, and remove no taint but the one that was
// seen: whatever others write at the same time stays as it is.
type nodePatch struct {
	operations []operation
	err        error
}

func newNodePatch(node *corev1.Node) *nodePatch {
	p := &nodePatch{}
	p.add("test", "/metadata/uid", node.UID)
	return p
}

// annotate sets annotations of a Node that still have the values that were seen.
// A write that was held up on its way, by whatever agent, must not take back what
// was said since.
func (p *nodePatch) annotate(node *corev1.Node, values []annotation) {
	const annotations = "/metadata/annotations"
	if node.Annotations == nil {
		p.add("test", annotations, nil)
		p.add("add", annotations, struct{}{})
	}
	for _, a := range values {
		path := annotations + "/" + escape(a.key)
		if seen, ok := node.Annotations[a.key]; ok {
			p.add("test", path, seen)
		} else if node.Annotations != nil {
			p.add("test", path, nil)
		}
		p.add("add", path, a.value)
	}
}

// removeTaints removes the taints of gates, provided that the Node still shows
// this boot.
func (p *nodePatch) removeTaints(node *corev1.Node, gates []*gate.Gate) {
	if len(gates) == 0 {
		return
	}
	p.add("test", "/status/nodeInfo/bootID", node.Status.NodeInfo.BootID)
	// From the end, so that indices stay those of the Node that was read.
	for i, taint := range slices.Backward(node.Spec.Taints) {
		for _, g := range gates {
			if g.IsTaint(taint) {
				path := fmt.Sprintf("/spec/taints/%d", i)
				p.add("test", path, taint)
				p.operations = append(p.operations, operation{Op: "remove", Path: path})
			}
		}
	}
}

func (p *nodePatch) add(op, path string, value any) {
	data, err := json.Marshal(value)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("encoding %s of the patch: %w", path, err)
	}
	raw := json.RawMessage(data)
	p.operations = append(p.operations, operation{Op: op, Path: path, Value: &raw})
}

// encode returns the patch as it is sent.
func (p *nodePatch) encode() ([]byte, error) {
	if p.err != nil {
		return nil, p.err
	}
	return json.Marshal(p.operations)
}

// escape writes a key as a JSON pointer has it (RFC 6901).
func escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}

// annotation is a key and its value.
type annotation struct{ key, value string }
