package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/cluster"
)

var (
	_ manager.Runnable               = (*Agent)(nil)
	_ manager.LeaderElectionRunnable = (*Agent)(nil)
)

// lever is a check that a test sets by hand. It passes at first.
type lever struct{ down atomic.Bool }

func (l *lever) Check(context.Context, *corev1.Node) error {
	if l.down.Load() {
		return errDown
	}
	return nil
}

func (l *lever) set(up bool) { l.down.Store(!up) }

func probe(name string, check Check) Probe {
	return Probe{Name: name, Check: check, Dwell: 50 * time.Millisecond, Timeout: 2 * time.Second}
}

// options are those of an agent on the Node with a check.
func (w *world) options(config *rest.Config, checks ...Check) Options {
	w.Helper()
	o := Options{
		Config:        config,
		NodeName:      w.name,
		PodUID:        "8125c226-9568-48d0-bda1-f5a076bdacb9",
		BootIDPath:    w.bootFile(thisBoot),
		CheckInterval: 20 * time.Millisecond,
		Gates:         []Gate{{Gate: gate.DefaultGate()}},
		Log:           slog.New(slog.NewTextHandler(w.Output(), nil)),
	}
	for i, check := range checks {
		o.Gates[0].Probes = append(o.Gates[0].Probes, probe(fmt.Sprintf("check-%d", i), check))
	}
	return o
}

func (w *world) bootFile(id string) string {
	w.Helper()
	path := filepath.Join(w.TempDir(), "boot_id")
	w.ok(os.WriteFile(path, []byte(id+"\n"), 0o600))
	return path
}

func (w *world) agent(o Options) *Agent {
	w.Helper()
	a, err := New(o)
	w.ok(err)
	return a
}

// run starts an agent and returns what stops it, which the end of the test does
// as well.
func (w *world) run(o Options) (a *Agent, stop func()) {
	w.Helper()
	a = w.agent(o)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	done := make(chan error, 1)
	go func() { done <- a.Start(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			w.Errorf("the agent returned %v", err)
		}
	}
	w.Cleanup(stop)
	return a, stop
}

// follow records every state that the Node takes from now on, until the test
// ends.
func (w *world) follow() (states func() []*corev1.Node) {
	w.Helper()
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", w.name).String()}
	list, err := w.admin.CoreV1().Nodes().List(w.Context(), options)
	w.ok(err)
	options.ResourceVersion = list.ResourceVersion
	watcher, err := w.admin.CoreV1().Nodes().Watch(w.Context(), options)
	w.ok(err)
	w.Cleanup(watcher.Stop)
	var seen []*corev1.Node
	return func() []*corev1.Node {
		// What was written before this mark has been sent before it.
		mark := w.update(func(n *corev1.Node) { metav1.SetMetaDataAnnotation(&n.ObjectMeta, "mark", fmt.Sprint(len(seen))) })
		for event := range watcher.ResultChan() {
			node, ok := event.Object.(*corev1.Node)
			if !ok || event.Type == watch.Error {
				w.Fatalf("watching: %v", event.Object)
			}
			seen = append(seen, node)
			if node.ResourceVersion == mark.ResourceVersion {
				return seen
			}
		}
		w.Fatal("the watch ended")
		return nil
	}
}

func foreignTaints() []corev1.Taint {
	added := metav1.NewTime(time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC))
	return []corev1.Taint{
		{Key: "node.kubernetes.io/unreachable", Effect: corev1.TaintEffectNoExecute, TimeAdded: &added},
		{Key: "example.com/a", Value: "v", Effect: corev1.TaintEffectNoSchedule},
		{Key: gate.DefaultTaintKey, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added},
	}
}

func TestAgent_OpensInOneWrite(t *testing.T) {
	w := newWorld(t)
	taints := foreignTaints()
	born := w.create(thisBoot, governedLabels(), append(taints[:2:2], append(armed(), taints[2])...)...)
	states := w.follow()
	w.run(w.options(w.identity(), &lever{}))
	node := w.eventuallyOpen()
	if diff := cmp.Diff(gate.DefaultGate().WithoutTaint(born.Spec.Taints), node.Spec.Taints); diff != "" {
		t.Errorf("foreign taints changed (-want +got):\n%s", diff)
	}
	for _, state := range states() {
		if isOpen(state) != saysReady(state, true) {
			t.Errorf("heartbeat and opening are not one write: taints %v, annotations %v", state.Spec.Taints, state.Annotations)
		}
	}
	hb, err := gate.ParseHeartbeat(node.Annotations[gate.DefaultGate().HeartbeatAnnotation()])
	w.ok(err)
	if hb.BootID != thisBoot || hb.TTL != 3*time.Minute || time.Since(hb.Time).Abs() > patience ||
		!strings.HasSuffix(node.Annotations[gate.DefaultGate().HeartbeatAnnotation()], " pod=8125c226-9568-48d0-bda1-f5a076bdacb9 seq=1") {
		t.Errorf("heartbeat %+v", hb)
	}
}

// TestAgent_ClosesAndOpens: what says ready=false is armed by admission in the
// same write.
func TestAgent_ClosesAndOpens(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	states := w.follow()
	check := &lever{}
	a, _ := w.run(w.options(w.identity(), check))
	for range 3 {
		w.eventuallyOpen()
		if ok, reasons := a.Ready(); !ok || !strings.Contains(reasons, "check check-0: passing") {
			t.Errorf("open, but the endpoint says %t:\n%s", ok, reasons)
		}
		check.set(false)
		w.eventuallyNode("closed", func(n *corev1.Node) bool { return !isOpen(n) && saysReady(n, false) })
		if ok, reasons := a.Ready(); ok || !strings.Contains(reasons, "check check-0: failing: down") {
			t.Errorf("closed, but the endpoint says %t:\n%s", ok, reasons)
		}
		check.set(true)
	}
	for _, state := range states() {
		if saysReady(state, false) && isOpen(state) {
			t.Error("a state says ready=false and is open")
		}
	}
}

func TestAgent_OpensAgainWhateverArms(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, nil, armed()...)
	w.run(w.options(w.identity(), &lever{}))
	for range 4 {
		w.eventuallyOpen()
		w.update(func(n *corev1.Node) { n.Spec.Taints = gate.DefaultGate().WithTaint(n.Spec.Taints) })
	}
	w.eventuallyOpen()
}

// TestAgent_DroppedHeartbeatReturns: dropping it arms, and the agent answers both
// in one write.
func TestAgent_DroppedHeartbeatReturns(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	w.run(w.options(w.identity(), &lever{}))
	w.eventuallyOpen()
	dropped := w.update(func(n *corev1.Node) { delete(n.Annotations, gate.DefaultGate().HeartbeatAnnotation()) })
	if isOpen(dropped) {
		t.Error("dropping the heartbeat left the Node open")
	}
	w.eventuallyOpen()
}

func TestAgent_AnotherBootNeverOpens(t *testing.T) {
	for name, shown := range map[string]string{"another": otherBoot, "none": "", "zeros": "00000000-0000-0000-0000-000000000000"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.create(shown, governedLabels())
			states := w.follow()
			a, _ := w.run(w.options(w.identity(), &lever{}))
			w.eventuallyNode("told that the boot is another", func(n *corev1.Node) bool {
				return saysReady(n, false) && strings.Contains(n.Annotations[gate.DefaultGate().HeartbeatAnnotation()], " failing=bootID ")
			})
			if ok, reasons := a.Ready(); ok || !strings.Contains(reasons, "boot: this machine's boot id is "+thisBoot) {
				t.Errorf("the endpoint says %t:\n%s", ok, reasons)
			}
			w.update(func(n *corev1.Node) { n.Spec.Taints = nil }) // a premature untaint
			for _, state := range states() {
				if isOpen(state) {
					t.Errorf("open while the Node shows boot %q", shown)
				}
			}
			w.boots(thisBoot)
			w.eventuallyOpen()
		})
	}
}

func TestAgent_UnknownBootNeverOpens(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	o := w.options(w.identity(), &lever{})
	o.BootIDPath = w.bootFile("00000000-0000-0000-0000-000000000000")
	w.run(o)
	w.eventuallyNode("told that the boot is unknown", func(n *corev1.Node) bool { return saysReady(n, false) && !isOpen(n) })
	w.ok(os.WriteFile(o.BootIDPath, []byte(thisBoot), 0o600))
	w.boots(thisBoot + " ") // any event makes the agent look again
	w.boots(thisBoot)
	w.eventuallyOpen()
}

// TestAgent_ABootIDThatIsGiven is used instead of the file's.
func TestAgent_ABootIDThatIsGiven(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	o := w.options(w.identity(), &lever{})
	o.BootIDPath, o.BootID = w.bootFile(otherBoot), thisBoot
	w.run(o)
	w.eventuallyOpen()
}

// TestAgent_NodeComesAndGoes: the agent waits for its Node, never creates it, and
// starts over with another of the same name.
func TestAgent_NodeComesAndGoes(t *testing.T) {
	w := newWorld(t)
	config := w.identity()
	a, _ := w.run(w.options(config, &lever{}))
	w.eventually(func() string {
		if ok, reasons := a.Ready(); ok || !strings.Contains(reasons, "waiting for the Node") {
			return "the endpoint does not wait for the Node: " + reasons
		}
		return ""
	})
	w.create(thisBoot, governedLabels())
	first := w.eventuallyOpen()
	w.delete()
	w.eventually(func() string {
		if ok, reasons := a.Ready(); ok {
			return "the endpoint says ready without a Node: " + reasons
		}
		return ""
	})
	// Restored from a backup, heartbeat and all.
	second := w.create(thisBoot, governedLabels())
	w.update(func(n *corev1.Node) {
		n.Annotations = map[string]string{gate.DefaultGate().HeartbeatAnnotation(): first.Annotations[gate.DefaultGate().HeartbeatAnnotation()]}
	})
	if node := w.eventuallyOpen(); node.UID != second.UID || node.UID == first.UID {
		t.Errorf("UID %s, want %s", node.UID, second.UID)
	}
}

// TestAgent_SurvivesAnOutage: what happened during it is told after it.
func TestAgent_SurvivesAnOutage(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	wire, err := cluster.NewWire(w.cluster.Admin)
	w.ok(err)
	t.Cleanup(wire.Cut)
	config := wire.Config(w.identity())
	check := &lever{}
	a, _ := w.run(w.options(config, check))
	w.eventuallyOpen()

	wire.Cut()
	check.set(false)
	w.eventually(func() string {
		if ok, reasons := a.Ready(); ok {
			return "the endpoint still says ready: " + reasons
		}
		return ""
	})
	w.eventually(func() string {
		if failed(a, failureUnreachable) == 0 {
			return "no write was tried"
		}
		return ""
	})
	if node := w.node(); !saysReady(node, true) {
		t.Error("a write came through the cut wire")
	}
	w.ok(wire.Mend())
	w.eventuallyNode("closed", func(n *corev1.Node) bool { return saysReady(n, false) && !isOpen(n) })
	check.set(true)
	w.eventuallyOpen()
}

// TestAgent_ConfiguredChecks: real sockets and a real directory, as a
// configuration has them.
func TestAgent_ConfiguredChecks(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	netDir, binDir := w.TempDir(), w.TempDir()
	socket := filepath.Join(socketDir(t), "s")
	cfg, err := gate.ParseConfiguration(fmt.Appendf(nil, `
apiVersion: nodegate.io/v1alpha1
kind: Configuration
gates:
- name: agent
  taint: {key: nodegate.io/agent-not-ready}
  checks:
  - {socket: {path: %s}, dwell: 100ms}
  - {conflist: {pluginType: gate-cni, dir: %s, binDir: %s}, dwell: 100ms}
`, socket, netDir, binDir))
	w.ok(err)
	g, err := FromConfiguration(&cfg.Gates[0])
	w.ok(err)
	o := w.options(w.identity())
	o.Gates = []Gate{g}
	a, _ := w.run(o)

	says := func(want string) {
		t.Helper()
		w.eventually(func() string {
			if _, reasons := a.Ready(); !strings.Contains(reasons, want) {
				return fmt.Sprintf("the endpoint does not say %q:\n%s", want, reasons)
			}
			return ""
		})
	}
	says(`check conflist: failing: the runtime is ""`)
	w.status(`{"nodeInfo":{"containerRuntimeVersion":"containerd://2.2.0"}}`)
	says("check socket: failing: socket " + socket + ": absent")
	listener := listen(t, socket)
	says("check socket: passing")
	says("check conflist: failing: no CNI configuration in " + netDir)
	list := filepath.Join(netDir, "10-net.conflist")
	write(t, list, `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"bridge"},{"type":"gate-cni"}]}`)
	says("check conflist: failing: looking for the plugin's binary")
	w.ok(os.WriteFile(filepath.Join(binDir, "gate-cni"), nil, 0o700))
	w.eventuallyOpen()

	// What another writer takes out of the list is put back.
	write(t, list, `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"bridge"}]}`)
	w.eventually(func() string {
		if data, err := os.ReadFile(list); err != nil || !strings.Contains(string(data), "gate-cni") {
			return fmt.Sprintf("the list is not mended: %s (%v)", data, err)
		}
		return ""
	})
	w.eventuallyOpen()

	// A single plugin's file is not for the agent to change.
	single := filepath.Join(netDir, "05-other.conf")
	write(t, single, `{"name":"n","cniVersion":"1.0.0","type":"ptp"}`)
	w.eventuallyNode("closed by the strip", func(n *corev1.Node) bool {
		return !isOpen(n) && strings.Contains(n.Annotations[gate.DefaultGate().HeartbeatAnnotation()], " failing=conflist ")
	})
	says("05-other.conf is loaded, a single plugin")
	w.ok(os.Remove(single))
	w.eventuallyOpen()

	w.ok(listener.Close())
	w.eventuallyNode("closed by the socket", func(n *corev1.Node) bool {
		return !isOpen(n) && strings.Contains(n.Annotations[gate.DefaultGate().HeartbeatAnnotation()], " failing=socket ")
	})
}

// TestAgent_ARollDoesNotFlap: the old agent goes, the new one finds the check
// failing for less than its dwell.
func TestAgent_ARollDoesNotFlap(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	config, check := w.identity(), &lever{}
	_, stop := w.run(w.options(config, check))
	w.eventuallyOpen()
	states := w.follow()
	stop()

	check.set(false)
	o := w.options(config, check)
	o.Gates[0].Probes[0].Dwell = time.Hour
	a, stop := w.run(o)
	w.eventually(func() string {
		if ok, reasons := a.Ready(); !ok || !strings.Contains(reasons, "check check-0: wavering: down") {
			return "the endpoint does not say wavering: " + reasons
		}
		return ""
	})
	check.set(true)
	w.eventually(func() string {
		if _, reasons := a.Ready(); !strings.Contains(reasons, "check check-0: passing") {
			return "the endpoint does not say passing: " + reasons
		}
		return ""
	})
	stop()
	for _, state := range states() {
		if !isOpen(state) || !saysReady(state, true) {
			t.Errorf("flapped: %v", state.Annotations)
		}
	}
}

// TestAgent_NothingBeforeEveryAnswer: one check answers, the other does not.
func TestAgent_NothingBeforeEveryAnswer(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	states := w.follow()
	hang := make(chan struct{})
	slow := CheckFunc(func(ctx context.Context) error {
		select {
		case <-hang:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	o := w.options(w.identity(), &lever{}, slow)
	o.Gates[0].Probes[1].Timeout = time.Hour
	a, _ := w.run(o)
	w.eventually(func() string {
		_, reasons := a.Ready()
		if !strings.Contains(reasons, "check-0: passing") || !strings.Contains(reasons, "check-1: unknown") {
			return "the endpoint does not show one answer of two:\n" + reasons
		}
		return ""
	})
	for _, state := range states() {
		if _, ok := state.Annotations[gate.DefaultGate().HeartbeatAnnotation()]; ok {
			t.Errorf("a heartbeat was written before every check answered")
		}
	}
	close(hang)
	w.eventuallyOpen()
}

// TestAgent_ReportsADenial: with a token that is bound to no pod the writes are
// denied, which is a reason of its own, and retried slowly.
func TestAgent_ReportsADenial(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	config, err := w.cluster.AccountToken(w.Context(), gate.Namespace, gate.AgentAccount)
	w.ok(err)
	a, _ := w.run(w.options(config, &lever{}))
	w.eventually(func() string {
		if failed(a, failureDenied) == 0 {
			return "no denial was counted"
		}
		return ""
	})
	if isOpen(w.node()) {
		t.Error("open all the same")
	}
}

// TestAgent_ForeignAdmissionPutsTheTaintBack: a policy of somebody else adds the
// taint to every write. The agent says so, and opens when the policy is gone.
func TestAgent_ForeignAdmissionPutsTheTaintBack(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, nil, armed()...)
	remove := w.alwaysArm()
	a, _ := w.run(w.options(w.identity(), &lever{}))
	w.eventually(func() string {
		if ok, reasons := a.Ready(); !ok || !strings.Contains(reasons, "taint: put back by admission") {
			return "the endpoint does not say that the taint was put back: " + reasons
		}
		return ""
	})
	if node := w.node(); isOpen(node) || !saysReady(node, true) {
		t.Errorf("taints %v, annotations %v", node.Spec.Taints, node.Annotations)
	}
	remove()
	w.eventuallyOpen()
	w.eventually(func() string {
		if _, reasons := a.Ready(); strings.Contains(reasons, "taint") {
			return "the endpoint still shows a taint: " + reasons
		}
		return ""
	})
}

func TestAgent_ReportsLackingRights(t *testing.T) {
	w := newWorld(t)
	w.create(thisBoot, governedLabels())
	config, err := w.cluster.User("somebody", "system:authenticated")
	w.ok(err)
	a := w.agent(w.options(config, &lever{}))
	w.lookAndAnswer(a)
	a.step(t.Context())
	if failed(a, failureForbidden) != 1 {
		t.Error("no lack of rights was counted")
	}
	if held := a.loop.retry.wait("agent=true ", a.clock.Now()); held < permanentBase/2 {
		t.Errorf("tries again after %s", held)
	}
}

func TestNew_Refuses(t *testing.T) {
	whole := func() Options {
		return Options{Config: &rest.Config{Host: "localhost"}, NodeName: "n", Gates: []Gate{{Gate: gate.DefaultGate(), Probes: []Probe{probe("c", &lever{})}}}}
	}
	if _, err := New(whole()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Options){
		"no client configuration is given":                            func(o *Options) { o.Config = nil },
		"no node name is given":                                       func(o *Options) { o.NodeName = "" },
		`the pod UID "a b" holds a blank`:                             func(o *Options) { o.PodUID = "a b" },
		`"0000-00" is no boot id`:                                     func(o *Options) { o.BootID = "0000-00" },
		`"a b" is no boot id`:                                         func(o *Options) { o.BootID = "a b" },
		`"A_b" of gate "agent" is no name`:                            func(o *Options) { o.Gates[0].Probes[0].Name = "A_b" },
		`"c" of gate "agent" is no name for a check, or is one twice`: func(o *Options) { o.Gates[0].Probes = append(o.Gates[0].Probes, o.Gates[0].Probes[0]) },
		"no gate is given":                                            func(o *Options) { o.Gates = nil },
		"a gate is nil":                                               func(o *Options) { o.Gates[0].Gate = nil },
		`gate "agent" is given twice`:                                 func(o *Options) { o.Gates = append(o.Gates, o.Gates[0]) },
		`gate "agent" has no checks`:                                  func(o *Options) { o.Gates[0].Probes = nil },
		`check "c" of gate "agent" lacks a check or a ti`:             func(o *Options) { o.Gates[0].Probes[0].Timeout = 0 },
	} {
		o := whole()
		change(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := FromConfiguration(&gate.Gate{Name: "g", Checks: []gate.Check{{Name: "c"}}}); err == nil {
		t.Error("a check of no kind is accepted")
	}
	g := gate.DefaultGate()
	g.Checks = []gate.Check{{Name: "c", Socket: &gate.SocketCheck{Path: "/" + strings.Repeat("a", gate.MaxSocketPath)}}}
	if _, err := FromConfiguration(g); err == nil || !strings.Contains(err.Error(), "checks[0].socket.path") {
		t.Errorf("a socket path that is too long: %v", err)
	}
}
