package webhook

import (
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"github.com/nodegate/nodegate/gate"
)

// request is what admission needs to know of a request.
type request struct {
	write gate.Write
	// hasSpec says that the sent Node has a spec to which a taint can be added.
	hasSpec bool
}

// nodeJSON is the part of a Node that is judged. The rest is not looked at, so
// that nothing in it can make a write fail.
type nodeJSON struct {
	Metadata struct {
		Name        string            `json:"name"`
		UID         types.UID         `json:"uid"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec *struct {
		Taints []struct {
			Key    string             `json:"key"`
			Value  string             `json:"value"`
			Effect corev1.TaintEffect `json:"effect"`
		} `json:"taints"`
	} `json:"spec"`
	Status struct {
		NodeInfo struct {
			BootID string `json:"bootID"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

// decode reads an admission request about a Node.
func decode(r admissionv1.AdmissionRequest) (request, error) {
	if r.Resource != (metav1.GroupVersionResource{Version: "v1", Resource: "nodes"}) {
		return request{}, fmt.Errorf("%w, not about %s", errNoNode, r.Resource.String())
	}
	sent := request{write: gate.Write{
		Operation:   r.Operation,
		Subresource: r.SubResource,
		Name:        r.Name,
		User:        r.UserInfo,
	}}
	var err error
	if r.Operation == admissionv1.Create || r.Operation == admissionv1.Update {
		if sent.write.New, sent.hasSpec, err = decodeNode(r.Object.Raw); err != nil {
			return request{}, fmt.Errorf("reading object: %w", err)
		}
	}
	if r.Operation == admissionv1.Update {
		if sent.write.Old, _, err = decodeNode(r.OldObject.Raw); err != nil {
			return request{}, fmt.Errorf("reading oldObject: %w", err)
		}
	}
	return sent, nil
}

func decodeNode(raw []byte) (node *corev1.Node, hasSpec bool, err error) {
	var n *nodeJSON
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &n); err != nil {
		return nil, false, err
	}
	if n == nil {
		return nil, false, errNoNode
	}
	node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        n.Metadata.Name,
		UID:         n.Metadata.UID,
		Labels:      n.Metadata.Labels,
		Annotations: n.Metadata.Annotations,
	}}
	node.Status.NodeInfo.BootID = n.Status.NodeInfo.BootID
	if n.Spec == nil {
		return node, false, nil
	}
	for _, t := range n.Spec.Taints {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	return node, true, nil
}
