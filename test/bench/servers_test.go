package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
	"github.com/nodegate/nodegate/test/cluster"
	"github.com/nodegate/nodegate/test/webhookserver"
)

// maxWriters is how many Nodes there are of each size and state.
const maxWriters = 50

// nodeSizes are those of a Node as JSON. What differs from cluster to cluster is
// the images.
var nodeSizes = []nodeSize{{"2KiB", 2}, {"16KiB", 75}}

type nodeSize struct {
	name   string
	images int
}

// state is what a Node has of the gate.
type state string

const (
	// armed, with an old heartbeat.
	armed state = "armed"
	// open, with a fresh heartbeat.
	open state = "open"
	// plain has nothing.
	plain state = "plain"
)

func nodeName(s state, size nodeSize, i int) string {
	return fmt.Sprintf("%s-%d-%d", s, size.images, i)
}

// form is what arms in admission.
type form string

const (
	none      form = "none"
	byPolicy  form = "policy"
	byWebhook form = "webhook"
)

// server is an API server with Nodes of all sizes and states.
type server struct {
	form       form
	admin      *rest.Config
	heartbeats map[string]string
}

func newServer(b *testing.B, f form) *server {
	b.Helper()
	c := cluster.ForTest(b)
	s := &server{form: f, admin: c.Admin, heartbeats: map[string]string{}}
	client := corev1client.NewForConfigOrDie(c.Admin)
	for _, size := range nodeSizes {
		for _, state := range []state{armed, open, plain} {
			for i := range maxWriters {
				if err := s.create(b.Context(), client.Nodes(), nodeName(state, size, i), state, size); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	if err := install(b, c, f); err != nil {
		b.Fatal(err)
	}
	return s
}

func install(b *testing.B, c *cluster.Cluster, f form) error {
	cfg := gate.Default()
	switch f {
	case byPolicy:
		return c.InstallPolicies(b.Context(), cfg)
	case byWebhook:
		policies, err := manifests.ValidationPolicies(cfg)
		if err != nil {
			return err
		}
		if err := c.Apply(b.Context(), policies); err != nil {
			return err
		}
		hook, err := webhookserver.Start(context.WithoutCancel(b.Context()), func() *gate.Configuration { return cfg }, c.Admin, nil)
		if err != nil {
			return err
		}
		b.Cleanup(func() { _ = hook.StopServing() })
		return c.AwaitPolicies(b.Context(), cfg)
	}
	return nil
}

// create brings a Node into its state before there is a gate.
func (s *server) create(ctx context.Context, nodes corev1client.NodeInterface, name string, state state, size nodeSize) error {
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"},
	}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	node.Status = status(size)
	if node, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil || state == plain {
		return err
	}
	g := gate.DefaultGate()
	heartbeat := gate.Heartbeat{
		Ready: true, Time: time.Now().Truncate(time.Second), TTL: gate.MaxTTL, BootID: node.Status.NodeInfo.BootID, NodeUID: node.UID,
	}
	if state == armed {
		node.Spec.Taints = g.WithTaint(nil)
		heartbeat.Time = heartbeat.Time.Add(-time.Hour)
	}
	if s.heartbeats[name], err = heartbeat.Format(); err != nil {
		return err
	}
	node.Annotations = map[string]string{g.HeartbeatAnnotation(): s.heartbeats[name]}
	_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
	return err
}

func status(size nodeSize) corev1.NodeStatus {
	s := corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "de2d9a80-35f2-44b5-bea4-72f10b303c45"}}
	for i := range size.images {
		s.Images = append(s.Images, corev1.ContainerImage{
			Names: []string{
				fmt.Sprintf("registry.example.com/project/some-image-name@sha256:%064d", i),
				fmt.Sprintf("registry.example.com/project/some-image-name:v1.%d", i),
			},
			SizeBytes: int64(i) << 20,
		})
	}
	return s
}

// writers are clients of as many Nodes in the state that the kind of write wants.
func (s *server) writers(b *testing.B, w nodeWrite, size nodeSize, n int) []writer {
	b.Helper()
	result := make([]writer, n)
	for i := range result {
		config, name := rest.CopyConfig(s.admin), nodeName(w.node, size, i)
		if w.as != nil {
			config.Impersonate = w.as(name)
		}
		client, err := corev1client.NewForConfig(config)
		if err != nil {
			b.Fatal(err)
		}
		result[i] = writer{server: s, node: name, nodes: client.Nodes()}
	}
	return result
}
