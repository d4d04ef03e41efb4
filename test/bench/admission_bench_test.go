package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

// BenchmarkNodeWrite compares writes to a Node on two API servers, one without
// and one with the default gate's policies, in turns.
func BenchmarkNodeWrite(b *testing.B) {
	none, policy := newServer(b, nil), newServer(b, gate.Default())
	label := func(i int) string { return fmt.Sprintf(`{"metadata":{"labels":{"example.com/n":"%d"}}}`, i) }
	writes := []struct {
		name        string
		node        string
		subresource []string
		patch       func(i int) string
	}{
		// The sent Node lacks the taint and another label has changed: judged, and
		// the taint is put back.
		{"kept armed", "armed", nil, func(i int) string {
			return fmt.Sprintf(`{"spec":{"taints":null},"metadata":{"labels":{"example.com/n":"%d"}}}`, i)
		}},
		{"armed", "armed", nil, label},
		{"open", "open", nil, label},
		{"not adopted", "plain", nil, label},
		{"status", "open", []string{"status"}, func(i int) string {
			return fmt.Sprintf(`{"status":{"nodeInfo":{"kernelVersion":"%d"}}}`, i)
		}},
	}
	for _, w := range writes {
		b.Run(w.name, func(b *testing.B) {
			var without, with []time.Duration
			for i := 0; b.Loop(); i++ {
				without = append(without, none.patch(b, w.node, w.patch(i), w.subresource...))
				with = append(with, policy.patch(b, w.node, w.patch(i), w.subresource...))
			}
			report(b, "none", without)
			report(b, "policy", with)
			b.ReportMetric(float64(percentile(with, 50))/float64(percentile(without, 50)), "p50-ratio")
			b.ReportMetric(0, "ns/op") // of two writes to two servers: means nothing
		})
	}
}

func report(b *testing.B, name string, times []time.Duration) {
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(percentile(times, p).Microseconds())/1000, fmt.Sprintf("%s-p%d-ms", name, p))
	}
}

// percentile of the times, which it sorts.
func percentile(times []time.Duration, p int) time.Duration {
	slices.Sort(times)
	return times[min(len(times)-1, len(times)*p/100)]
}

// server is an API server with three Nodes of about 16 KiB: armed with an old
// heartbeat, open with a fresh one, and one that has nothing of the gate.
type server struct {
	client kubernetes.Interface
}

func newServer(b *testing.B, cfg *gate.Configuration) *server {
	b.Helper()
	c, err := cluster.Start()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Stop() })
	client, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		b.Fatal(err)
	}
	s := &server{client: client}
	s.create(b, "armed", "open", "plain")
	if cfg == nil {
		return s
	}
	if err := c.InstallPolicies(b.Context(), cfg); err != nil {
		b.Fatal(err)
	}
	return s
}

func (s *server) create(b *testing.B, names ...string) {
	b.Helper()
	for _, name := range names {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}}}
		created, err := s.client.CoreV1().Nodes().Create(b.Context(), node, metav1.CreateOptions{})
		if err != nil {
			b.Fatal(err)
		}
		created.Status = status()
		if created, err = s.client.CoreV1().Nodes().UpdateStatus(b.Context(), created, metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
		created.Spec.Taints = nil
		heartbeat := gate.Heartbeat{Ready: true, Time: time.Now().Truncate(time.Second), TTL: gate.MaxTTL, BootID: created.Status.NodeInfo.BootID, NodeUID: created.UID}
		if name == "armed" {
			created.Spec.Taints = gate.DefaultGate().WithTaint(nil)
			heartbeat.Time = heartbeat.Time.Add(-time.Hour)
		}
		if name != "plain" {
			value, err := heartbeat.Format()
			if err != nil {
				b.Fatal(err)
			}
			created.Annotations = map[string]string{gate.DefaultGate().HeartbeatAnnotation(): value}
		}
		if _, err := s.client.CoreV1().Nodes().Update(b.Context(), created, metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// status is of the size that a node with many images has.
func status() corev1.NodeStatus {
	s := corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "de2d9a80-35f2-44b5-bea4-72f10b303c45"}}
	for i := range 100 {
		s.Images = append(s.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("registry.example.com/project/some-image-name@sha256:%064d", i), fmt.Sprintf("registry.example.com/project/some-image-name:v1.%d", i)},
			SizeBytes: int64(i) << 20,
		})
	}
	return s
}

func (s *server) patch(b *testing.B, node, patch string, subresources ...string) time.Duration {
	b.Helper()
	start := time.Now()
	_, err := s.client.CoreV1().Nodes().Patch(b.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	if err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}
