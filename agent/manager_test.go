package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/syncbuf"
)

var (
	_ manager.Runnable               = (*TaintRemover)(nil)
	_ manager.LeaderElectionRunnable = (*TaintRemover)(nil)
)

func newManager(config *rest.Config, probes string) (ctrl.Manager, error) {
	ctrl.SetLogger(logr.Discard())
	return ctrl.NewManager(config, ctrl.Options{
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: probes,
		Logger:                 logr.Discard(),
	})
}

func (w *world) manager(config *rest.Config) ctrl.Manager {
	w.Helper()
	mgr, err := newManager(config, "0")
	w.ok(err)
	return mgr
}

// probed is a manager that listens for probes at an address.
func (w *world) probed(config *rest.Config) (ctrl.Manager, string) {
	w.Helper()
	for {
		listener := listenTCP(w.T)
		address := listener.Addr().String()
		w.ok(listener.Close()) // it is free now, most likely
		mgr, err := newManager(config, address)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		w.ok(err)
		return mgr, address
	}
}

// start runs a manager until the test ends or its end is asked for. It must end
// without an error.
func (w *world) start(mgr ctrl.Manager) (stop func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.unended())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("the manager returned %v", err)
		}
	})
	w.Cleanup(stop)
	return stop
}

func TestAgent_SetupWithManager(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	config, check := w.identity(), &lever{}
	check.set(false)
	mgr, address := w.probed(config)
	a := w.agent(w.options(config, check))
	w.ok(a.SetupWithManager(mgr))
	w.start(mgr)
	ready := func(want int) {
		t.Helper()
		w.eventually(func() string {
			answer, err := http.Get("http://" + address + "/readyz/" + readyCheckName)
			if err != nil {
				return err.Error()
			}
			defer answer.Body.Close()
			body, _ := io.ReadAll(answer.Body)
			if answer.StatusCode != want {
				return fmt.Sprintf("the manager's readiness is %d %s, want %d", answer.StatusCode, body, want)
			}
			return ""
		})
	}
	ready(http.StatusInternalServerError)
	check.set(true)
	w.eventuallyOpen()
	ready(http.StatusOK)
	if err := a.SetupWithManager(mgr); err == nil || !strings.Contains(err.Error(), "readiness") {
		t.Errorf("set up twice: %v", err)
	}
}

func (w *world) remover(config *rest.Config, log io.Writer, check Check) (*TaintRemover, ctrl.Manager) {
	w.Helper()
	mgr := w.manager(config)
	r := &TaintRemover{
		Client: mgr.GetClient(), NodeName: w.name, Log: slog.New(slog.NewTextHandler(log, nil)),
		Gate: Gate{Probes: []Probe{probe("socket", check)}},
	}
	w.ok(r.SetupWithManager(mgr))
	return r, mgr
}

// TestTaintRemover: it removes the taint as often as somebody adds it, while the
// check passes, and leaves everything else as it is.
func TestTaintRemover(t *testing.T) {
	w := newWorld(t)
	foreign := gate.DefaultGate().WithoutTaint(w.create(thisBoot, nil, append(foreignTaints(), armed()...)...).Spec.Taints)
	check := &lever{}
	check.set(false)
	log := &syncbuf.Buffer{}
	r, mgr := w.remover(w.identity(), log, check)
	stop := w.start(mgr)
	w.eventually(func() string {
		if !strings.Contains(log.String(), `msg="Taint stays: a check does not pass"`) || !strings.Contains(log.String(), `reason="socket: down"`) {
			return "it does not say why the taint stays: " + log.String()
		}
		return ""
	})
	if isOpen(w.node()) {
		t.Error("removed while the check fails")
	}
	for range 3 {
		check.set(true)
		node := w.eventuallyNode("without the taint", isOpen)
		if diff := cmp.Diff(foreign, node.Spec.Taints); diff != "" || len(node.Annotations) > 0 {
			t.Errorf("annotations %v, foreign taints (-want +got):\n%s", node.Annotations, diff)
		}
		check.set(false)
		w.eventually(func() string {
			if r.running.probers[0].remembered().reason == nil {
				return "the check still passes"
			}
			return ""
		})
		w.update(func(n *corev1.Node) { n.Spec.Taints = gate.DefaultGate().WithTaint(n.Spec.Taints) })
	}
	stop()
	if isOpen(w.node()) {
		t.Error("removed while the check fails")
	}
	if got := strings.Count(log.String(), "Removed the taint"); got != 3 {
		t.Errorf("%d removals were logged:\n%s", got, log)
	}
}

// TestTaintRemover_Conflist: a list that is mended is told of, without an Agent too.
func TestTaintRemover_Conflist(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, nil, armed()...)
	dir, binDir := t.TempDir(), t.TempDir()
	w.ok(os.WriteFile(filepath.Join(binDir, "gate-cni"), nil, 0o700))
	write(t, filepath.Join(dir, ".gate-cni-entry"), `{"type":"gate-cni"}`)
	write(t, filepath.Join(dir, "10-net.conflist"), `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"bridge"}]}`)
	log := &syncbuf.Buffer{}
	_, mgr := w.remover(w.identity(), log, ConflistCheck(gate.ConflistCheck{
		PluginType: "gate-cni", Runtime: "containerd", Dir: dir, BinDir: binDir, EntryFile: filepath.Join(dir, ".gate-cni-entry"),
	}))
	stop := w.start(mgr)
	w.eventuallyNode("without the taint", isOpen)
	stop()
	if n := strings.Count(log.String(), `msg="Mended the CNI configuration"`); n != 1 {
		t.Errorf("told %d times:\n%s", n, log)
	}
}

// TestTaintRemover_NeverFailsItsHost: neither without a Node, a right, an API
// server, nor with options that make no sense.
func TestTaintRemover_NeverFailsItsHost(t *testing.T) {
	w := newWorld(t)
	lacking, err := w.cluster.User("taint-remover-without-rights", "system:authenticated")
	w.ok(err)
	allowed := w.identity()
	w.create(thisBoot, nil, armed()...)
	for name, tc := range map[string]struct {
		config *rest.Config
		change func(*TaintRemover)
		want   string
	}{
		"no right":      {lacking, func(*TaintRemover) {}, "API server refuses to show the Node"},
		"no Node":       {allowed, func(r *TaintRemover) { r.NodeName = "nobody" }, ""},
		"no API server": {&rest.Config{Host: "https://127.0.0.1:1"}, func(*TaintRemover) {}, ""},
		"no client":     {allowed, func(r *TaintRemover) { r.Client = nil }, "no client is given"},
		"no name":       {allowed, func(r *TaintRemover) { r.NodeName = "" }, "no node name is given"},
		"no checks":     {allowed, func(r *TaintRemover) { r.Gate.Probes = nil }, "has no checks"},
		"no manager":    {allowed, func(r *TaintRemover) { r.rest = nil }, "it was not set up with a manager"},
		"a check of an Agent's": {allowed, func(r *TaintRemover) {
			r.Gate.Probes[0].Check = &nodeConditionCheck{}
		}, "needs an Agent"},
	} {
		t.Run(name, func(t *testing.T) {
			log, host := &syncbuf.Buffer{}, &host{started: make(chan struct{})}
			r, mgr := w.remover(tc.config, log, &lever{})
			tc.change(r)
			w.ok(mgr.Add(host))
			stop := w.start(mgr)
			<-host.started
			w.eventually(func() string {
				if !strings.Contains(log.String(), tc.want) {
					return "it does not say " + tc.want + ": " + log.String()
				}
				return ""
			})
			stop()
		})
	}
	if isOpen(w.node()) {
		t.Error("one of them removed the taint")
	}
}

// host is what else its manager runs.
type host struct{ started chan struct{} }

func (h *host) Start(ctx context.Context) error {
	close(h.started)
	<-ctx.Done()
	return nil
}

// TestTaintRemover_LogsOnce: a failure that repeats is told once.
func TestTaintRemover_LogsOnce(t *testing.T) {
	var log bytes.Buffer
	r := &TaintRemover{Log: slog.New(slog.NewTextHandler(&log, nil)), NodeName: "n"}
	r.prepare()
	for range 10 {
		r.say("Removing the taint failed, trying again", errors.New("no"))
	}
	r.say("Taint stays: a check does not pass", errDown)
	if got := strings.Count(log.String(), "\n"); got != 2 {
		t.Errorf("%d lines:\n%s", got, log.String())
	}
}
