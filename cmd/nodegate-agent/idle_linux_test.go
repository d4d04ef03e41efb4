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

var idle = flag.Duration("idle", 0, "measure for so long what an agent needs that has nothing to do")

// TestIdle measures an agent on an open node whose check passes, at the cadences
// of the smallest and the largest clusters. It judges nothing: make idle.
func TestIdle(t *testing.T) {
	if *idle == 0 {
		t.Skip("asked for by make idle")
	}
	c, err := cluster.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop() })
	t.Logf("stripped binary: %.1f MB", float64(strippedSize(t))/1e6)
	for _, cadence := range []string{"0", "300"} {
		t.Run("ttl "+cadence, func(t *testing.T) { measureIdle(t, c, cadence) })
	}
}

func measureIdle(t *testing.T, c *cluster.Cluster, cadence string) {
	const boot = "de2d9a80-35f2-44b5-bea4-72f10b303c45"
	admin, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	nodes := admin.CoreV1().Nodes()
	_, err = nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a", Annotations: map[string]string{corev1.ObjectTTLAnnotationKey: cadence}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = admin.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), "node-a", metav1.DeleteOptions{})
	})
	if _, err := nodes.PatchStatus(t.Context(), "node-a", fmt.Appendf(nil, `{"status":{"nodeInfo":{"bootID":%q}}}`, boot)); err != nil {
		t.Fatal(err)
	}
	wire, err := cluster.NewWire(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Cut)
	p := start(t, c, wire.Config(c.Admin), boot)
	p.listen()
	heartbeat := func() string {
		node, err := nodes.Get(t.Context(), "node-a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return node.Annotations[gate.DefaultGate().HeartbeatAnnotation()]
	}
	eventually(t, func() string { return map[bool]string{true: "no heartbeat"}[heartbeat() == ""] })
	first, bytesBefore, cpuBefore, began := heartbeat(), wire.Sent(), p.cpu(), time.Now()
	<-time.After(*idle)
	cpu, sent, took := p.cpu()-cpuBefore, wire.Sent()-bytesBefore, time.Since(began)
	t.Logf("RSS %s, peak %s, CPU %.3f %% of a core, %.0f bytes an hour to the API server (heartbeats %s to %s)",
		p.memory("VmRSS"), p.memory("VmHWM"), 100*cpu.Seconds()/took.Seconds(), float64(sent)/took.Hours(),
		first[strings.LastIndex(first, " ")+1:], heartbeat()[strings.LastIndex(heartbeat(), " ")+1:])
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

func (p *process) memory(field string) string {
	p.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		p.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func strippedSize(t *testing.T) int64 {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nodegate-agent")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, output)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
