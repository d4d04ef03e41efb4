package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

var idle = flag.Duration("idle", 5*time.Minute, "for how long BenchmarkIdle watches an agent that has nothing to do")

// BenchmarkIdle measures an agent on an open node whose check passes, at the
// cadences of the smallest and the largest clusters: make idle.
func BenchmarkIdle(b *testing.B) {
	c := cluster.ForTest(b)
	for _, cadence := range []string{"0", "300"} {
		b.Run("ttl="+cadence, func(b *testing.B) { measureIdle(b, c, cadence) })
	}
}

func measureIdle(b *testing.B, c *cluster.Cluster, cadence string) {
	const boot = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		b.Fatal(err)
	}
	nodes := admin.CoreV1().Nodes()
	_, err = nodes.Create(b.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a", Annotations: map[string]string{corev1.ObjectTTLAnnotationKey: cadence}},
	}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = admin.CoreV1().Nodes().Delete(context.WithoutCancel(b.Context()), "node-a", metav1.DeleteOptions{})
	})
	if _, err := nodes.PatchStatus(b.Context(), "node-a", fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q}}}`, boot)); err != nil {
		b.Fatal(err)
	}
	wire, err := cluster.NewWire(c.Admin)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(wire.Cut)
	p := start(b, c, wire.Config(c.Admin), boot)
	p.listen()
	heartbeat := func() string {
		node, err := nodes.Get(b.Context(), "node-a", metav1.GetOptions{})
		if err != nil {
			b.Fatal(err)
		}
		return node.Annotations[gate.DefaultGate().HeartbeatAnnotation()]
	}
	eventually(b, func() string { return map[bool]string{true: "no heartbeat"}[heartbeat() == ""] })
	bytesBefore, cpuBefore, began := wire.Sent(), p.cpu(), time.Now()
	<-time.After(*idle)
	cpu, sent, took := p.cpu()-cpuBefore, wire.Sent()-bytesBefore, time.Since(began)
	b.ReportMetric(p.memory("VmRSS"), "RSS-MiB")
	b.ReportMetric(p.memory("VmHWM"), "peak-RSS-MiB")
	b.ReportMetric(100*cpu.Seconds()/took.Seconds(), "%-of-a-core")
	b.ReportMetric(float64(sent)/took.Hours(), "sent-B/h")
	b.ReportMetric(float64(strippedSize(b))/1e6, "stripped-MB")
	b.ReportMetric(0, "ns/op") // of waiting: means nothing
}

// cpu is what the process has used, in user and kernel mode (proc_pid_stat(5)).
func (p *process) cpu() time.Duration {
	p.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.command.Process.Pid))
	if err != nil {
		p.Fatal(err)
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	var ticks int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			p.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100
}

// memory is a figure of proc_pid_status(5), in MiB.
func (p *process) memory(field string) float64 {
	p.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		p.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
			if err != nil {
				p.Fatal(err)
			}
			return float64(kib) / 1024
		}
	}
	p.Fatalf("no %s in\n%s", field, data)
	return 0
}

func strippedSize(b *testing.B) int64 {
	b.Helper()
	path := filepath.Join(b.TempDir(), "nodegate-agent")
	if output, err := exec.CommandContext(b.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, ".").CombinedOutput(); err != nil {
		b.Fatalf("building: %v\n%s", err, output)
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	return info.Size()
}
