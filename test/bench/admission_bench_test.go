package bench

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/nodegate/nodegate/gate"
)

// BenchmarkNodeWrite compares writes to a Node on API servers without a gate,
// with the policies, and with the webhook. They take turns at every write, so
// that whatever else the machine does hits them alike. With many writers, each has
// a Node of its own, and a turn is a write of each.
//
// Reported are the time without a gate in ms, and the others as multiples of it.
// docs/decisions/020-what-a-write-costs.md says where the time goes.
func BenchmarkNodeWrite(b *testing.B) {
	servers := []*server{newServer(b, none), newServer(b, byPolicy), newServer(b, byWebhook)}
	turn := 0
	for _, size := range nodeSizes {
		for _, writers := range []int{1, maxWriters} {
			for _, w := range nodeWrites {
				b.Run(fmt.Sprintf("%s/%s/writers=%d", w.name, size.name, writers), func(b *testing.B) {
					clients := make([][]writer, len(servers))
					for i, s := range servers {
						clients[i] = s.writers(b, w, size, writers)
					}
					times := make([][]time.Duration, len(servers))
					for i := 0; b.Loop(); i++ {
						if i%writers != 0 {
							continue // an iteration stands for one write to each server
						}
						turn++
						for k := range servers {
							s := (turn + k) % len(servers)
							times[s] = append(times[s], writeAll(b, clients[s], w, turn)...)
						}
					}
					report(b, servers, times)
				})
			}
		}
	}
}

// nodeWrite is one kind of write.
type nodeWrite struct {
	name string
	// node is the state of the Nodes that it writes.
	node state
	// as is who writes; nil is an administrator.
	as          func(node string) rest.ImpersonationConfig
	subresource []string
	// patch is never the same for two turns.
	patch func(s *server, node string, turn int) string
}

// nodeWrites that need a judgement come first. The webhook is called for the
// judged ones only; the policies see all but those to the status.
var nodeWrites = []nodeWrite{
	// The sent Node lacks the taint and another label has changed: the taint is put
	// back.
	{name: "judged/kept", node: armed, patch: func(_ *server, _ string, turn int) string {
		return fmt.Sprintf(`{"spec":{"taints":null},"metadata":{"labels":{"example.com/n":"%d"}}}`, turn)
	}},
	{name: "judged/heartbeat", node: open, as: asAgent, patch: func(s *server, node string, turn int) string {
		return fmt.Sprintf(`{"metadata":{"annotations":{%q:"%s seq=%d"}}}`, gate.DefaultGate().HeartbeatAnnotation(), s.heartbeats[node], turn)
	}},
	{name: "judged/open", node: open, patch: label},
	{name: "judged/not-adopted", node: plain, patch: label},
	{name: "unneeded/armed", node: armed, patch: label},
	{name: "unneeded/status", node: open, as: asKubelet, subresource: []string{"status"}, patch: func(_ *server, _ string, turn int) string {
		return fmt.Sprintf(`{"status":{"nodeInfo":{"kernelVersion":"%d"}}}`, turn)
	}},
}

func label(_ *server, _ string, turn int) string {
	return fmt.Sprintf(`{"metadata":{"labels":{"example.com/n":"%d"}}}`, turn)
}

// asAgent is the gate's agent; the group spares it a role.
func asAgent(node string) rest.ImpersonationConfig {
	return rest.ImpersonationConfig{
		UserName: gate.DefaultGate().Agent.Username(),
		Groups:   []string{"system:masters"},
		Extra:    map[string][]string{gate.ExtraNodeName: {node}, gate.ExtraPodUID: {"8125c226-9568-48d0-bda1-f5a076bdacb9"}},
	}
}

func asKubelet(node string) rest.ImpersonationConfig {
	return rest.ImpersonationConfig{UserName: gate.KubeletUserPrefix + node, Groups: []string{gate.KubeletGroup}}
}

// writer writes one Node.
type writer struct {
	server *server
	node   string
	nodes  corev1client.NodeInterface
}

// writeAll makes one write by each writer at once and says how long each took.
func writeAll(b *testing.B, writers []writer, w nodeWrite, turn int) []time.Duration {
	b.Helper()
	times, errs := make([]time.Duration, len(writers)), make([]error, len(writers))
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() { times[i], errs[i] = writers[i].write(b, w, turn) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	return times
}

func (o *writer) write(b *testing.B, w nodeWrite, turn int) (time.Duration, error) {
	patch := []byte(w.patch(o.server, o.node, turn))
	start := time.Now()
	_, err := o.nodes.Patch(b.Context(), o.node, types.MergePatchType, patch, metav1.PatchOptions{}, w.subresource...)
	return time.Since(start), err
}

// rounds are how many writes to each server make a round, by percentile: whole
// turns of all writers, and enough for there to be such a percentile.
var rounds = map[int]int{50: maxWriters, 99: 4 * maxWriters}

// report compares every server with the first.
func report(b *testing.B, servers []*server, times [][]time.Duration) {
	b.ReportMetric(0, "ns/op") // of writes to three servers: means nothing
	for p, round := range rounds {
		b.ReportMetric(milliseconds(percentile(times[0], p)), fmt.Sprintf("%s-p%d-ms", servers[0].form, p))
		for i, s := range servers[1:] {
			b.ReportMetric(ratio(times[i+1], times[0], p, round), fmt.Sprintf("%s-p%d-x", s.form, p))
		}
	}
}

// ratio of the percentiles: the median of those in all rounds, so that a bad moment
// of the machine does not decide.
func ratio(times, base []time.Duration, p, round int) float64 {
	var ratios []float64
	for from := 0; from < len(base); from += round {
		to := min(from+round, len(base))
		ratios = append(ratios, float64(percentile(times[from:to], p))/float64(percentile(base[from:to], p)))
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

func percentile(times []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)*p/100]
}
