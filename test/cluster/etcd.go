package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// putters store objects at the same time. Each has a transaction of its own: objects
// of one would share a resourceVersion, which no API server has to do with.
const putters = 8

// PutNode stores a Node in etcd, past the API server and everything that would
// judge or change it: stamps, UID and boot id stay as they are given.
func (c *Cluster) PutNode(ctx context.Context, node *corev1.Node) error {
	write, err := c.PreparePut([]*corev1.Node{node}, nil)
	if err != nil {
		return err
	}
	return write(ctx)
}

// PreparePut encodes Nodes and pods, and returns what stores them as
// [Cluster.PutNode] does, as fast as can be.
func (c *Cluster) PreparePut(nodes []*corev1.Node, pods []*corev1.Pod) (func(context.Context) error, error) {
	var bodies [][]byte
	for _, node := range nodes {
		body, err := encode(node.DeepCopy(), "Node", "/registry/minions/"+node.Name)
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
	}
	for _, pod := range pods {
		body, err := encode(pod.DeepCopy(), "Pod", "/registry/pods/"+pod.Namespace+"/"+pod.Name)
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
	}
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(putters)
		for _, body := range bodies {
			group.Go(func() error { return c.etcdPut(ctx, body) })
		}
		return group.Wait()
	}, nil
}

// encode returns the request that stores an object, which it changes.
func encode(object client.Object, kind, key string) ([]byte, error) {
	object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	object.SetResourceVersion("")
	value, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encoding %s %q: %w", kind, object.GetName(), err)
	}
	// Key and value are in base64, as bytes are in JSON.
	return json.Marshal(map[string][]byte{"key": []byte(key), "value": value})
}

// etcdPut stores by etcd's JSON gateway.
func (c *Cluster) etcdPut(ctx context.Context, body []byte) error {
	url := c.env.ControlPlane.Etcd.URL.JoinPath("/v3/kv/put").String()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("storing in etcd: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil { // so that the connection is used again
		return fmt.Errorf("storing in etcd: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("storing in etcd: %s", answer.Status)
	}
	return nil
}
