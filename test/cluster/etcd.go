package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
)

// PutNode stores a Node in etcd, past the API server and everything that would
// judge or change it: stamps, UID and boot id stay as they are given.
func (c *Cluster) PutNode(ctx context.Context, node *corev1.Node) error {
	node = node.DeepCopy()
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	node.ResourceVersion = ""
	value, err := json.Marshal(node)
	if err != nil {
		return fmt.Errorf("encoding node %q: %w", node.Name, err)
	}
	encode := base64.StdEncoding.EncodeToString
	body, err := json.Marshal(map[string]string{
		"key": encode([]byte("/registry/minions/" + node.Name)), "value": encode(value),
	})
	if err != nil {
		return err
	}
	url := c.env.ControlPlane.Etcd.URL.JoinPath("/v3/kv/put").String()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("storing node %q in etcd: %w", node.Name, err)
	}
	defer func() { _ = answer.Body.Close() }() // nothing in it is read
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("storing node %q in etcd: %s", node.Name, answer.Status)
	}
	return nil
}
