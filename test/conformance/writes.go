package conformance

import (
	"context"
	"encoding/json"
	"fmt"

	mergepatch "github.com/evanphx/json-patch/v5"
	jsonpatch "gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/test/cases"
)

// send performs a row's write, which turns stored into sent.
func send(ctx context.Context, client kubernetes.Interface, c *cases.Case, stored, sent *corev1.Node) error {
	nodes := client.CoreV1().Nodes()
	switch c.Verb {
	case cases.Create:
		_, err := nodes.Create(ctx, sent, metav1.CreateOptions{})
		return err
	case cases.Delete:
		return nodes.Delete(ctx, stored.Name, metav1.DeleteOptions{})
	case cases.Put:
		sent = sent.DeepCopy()
		sent.ResourceVersion = ""
		if c.Status {
			_, err := nodes.UpdateStatus(ctx, sent, metav1.UpdateOptions{})
			return err
		}
		_, err := nodes.Update(ctx, sent, metav1.UpdateOptions{})
		return err
	}
	kind, patch, err := patchFor(c.Verb, stored, sent)
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{}
	if kind == types.ApplyPatchType {
		options = metav1.PatchOptions{FieldManager: "applier", Force: new(true)}
	}
	var subresources []string
	if c.Status {
		subresources = append(subresources, "status")
	}
	_, err = nodes.Patch(ctx, stored.Name, kind, patch, options, subresources...)
	return err
}

// patchFor makes the patch that turns stored into sent.
func patchFor(verb cases.Verb, stored, sent *corev1.Node) (types.PatchType, []byte, error) {
	before, err := json.Marshal(stored)
	if err != nil {
		return "", nil, err
	}
	after, err := json.Marshal(sent)
	if err != nil {
		return "", nil, err
	}
	switch verb {
	case cases.Merge:
		patch, err := mergepatch.CreateMergePatch(before, after)
		return types.MergePatchType, patch, err
	case cases.Strategic:
		patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
		return types.StrategicMergePatchType, patch, err
	case cases.JSON:
		operations, err := jsonpatch.CreatePatch(before, after)
		if err != nil {
			return "", nil, err
		}
		patch, err := json.Marshal(operations)
		return types.JSONPatchType, patch, err
	case cases.Apply:
		patch, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{"name": stored.Name},
			"spec":     map[string]any{"taints": sent.Spec.Taints},
		})
		return types.ApplyPatchType, patch, err
	}
	return "", nil, fmt.Errorf("verb %q is no patch", verb)
}
