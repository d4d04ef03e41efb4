//go:build linux && e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/e2e/lab"
	"github.com/nodegate/nodegate/test/e2e/machine"
	"github.com/nodegate/nodegate/test/e2e/record"
)

// stage is a machine on which a scenario plays, with or without nodegate.
type stage struct {
	*testing.T
	*lab.Lab
	ctx   context.Context
	m     *machine.Machine
	gated bool
	began time.Time
	// atOnce: a gate is to be closed from the first sight of a boot on, since there is a
	// guard all the while, or a write that must arm.
	atOnce bool
}

func newStage(t *testing.T, l *lab.Lab, m *machine.Machine, gated bool) *stage {
	return &stage{T: t, Lab: l, ctx: t.Context(), m: m, gated: gated, began: time.Now()}
}

// must ends the test on an error.
func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) hold(file string)    { s.Helper(); s.must(s.m.WriteFile(file, "")) }
func (s *stage) release(file string) { s.Helper(); s.must(os.RemoveAll(s.m.Disk(file))) }

func (s *stage) powerOff() { s.Helper(); s.must(s.m.PowerOff()) }
func (s *stage) powerOn()  { s.Helper(); s.must(s.m.PowerOn(s.ctx)) }

// awaitNode waits for a state of the Node, the last one or a later one.
func (s *stage) awaitNode(what string, condition func(lab.NodeSeen) bool) {
	s.Helper()
	err := s.Await(s.ctx, s.m.Name+" "+what, func(context.Context) (bool, error) {
		states := s.Seen.Node(s.m.Name)
		return len(states) > 0 && condition(states[len(states)-1]), nil
	})
	if err != nil {
		s.Fatalf("%v; the Node was seen so: %s", err, s.describe())
	}
}

// awaitUp waits until the Node shows the last boot and is Ready.
func (s *stage) awaitUp() {
	s.Helper()
	s.awaitNode("to be up", func(n lab.NodeSeen) bool { return n.BootID == s.m.BootID() && n.Ready })
}

// awaitClosed waits until the gate is closed. Without nodegate nobody closes one.
func (s *stage) awaitClosed() {
	s.Helper()
	if s.gated {
		s.awaitNode("to be closed", func(n lab.NodeSeen) bool { return n.Armed })
	}
}

// awaitReport waits until the agent has said in this boot whether it serves. Without
// nodegate nobody does.
func (s *stage) awaitReport() {
	s.Helper()
	if s.gated {
		s.awaitNode("to be told by its agent", func(n lab.NodeSeen) bool { return n.Reported == s.m.BootID() })
	}
}

// awaitWaiting waits until somebody who looks at a workload of the stream is told why it
// does not start: it is Pending, and an Event tells of a taint. That it is not bound
// nevertheless is judged in the end.
func (s *stage) awaitWaiting() {
	s.Helper()
	if !s.gated {
		return
	}
	s.must(s.Await(s.ctx, "a workload that waits for a taint to go from "+s.m.Name, func(ctx context.Context) (bool, error) {
		pods, err := s.Client.CoreV1().Pods(lab.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=,status.phase=Pending"})
		if err != nil {
			return false, err
		}
		events, err := s.Client.CoreV1().Events(lab.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedScheduling"})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return strings.Contains(e.Message, "untolerated taint") && slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
				return p.UID == e.InvolvedObject.UID && p.Spec.NodeSelector[corev1.LabelHostname] == s.m.Name
			})
		}), nil
	}))
}

// awaitEvent waits until an Event says something of a workload.
func (s *stage) awaitEvent(workload types.UID, reason, text string) {
	s.Helper()
	s.must(s.Await(s.ctx, "an Event "+reason, func(ctx context.Context) (bool, error) {
		events, err := s.Client.CoreV1().Events(lab.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(workload) + ",reason=" + reason})
		if err != nil || len(events.Items) == 0 {
			return false, err
		}
		said := events.Items[0].Message
		s.Logf("%s: %s", reason, said)
		if !strings.Contains(said, text) {
			s.Errorf("it does not say %q", text)
		}
		return true, nil
	}))
}

// awaitOpen waits until the Node is up and open, in this boot and for good reason.
func (s *stage) awaitOpen() {
	s.Helper()
	s.awaitNode("to be open", func(n lab.NodeSeen) bool { return n.BootID == s.m.BootID() && opened(n) })
}

// opened: the gate is open because the agent says so.
func opened(n lab.NodeSeen) bool { return n.Ready && !n.Armed && n.Serves && n.Reported == n.BootID }

// awaitStarts waits until so many workloads have started since a time.
func (s *stage) awaitStarts(since time.Time, count int) {
	s.Helper()
	s.must(s.Await(s.ctx, fmt.Sprintf("%d workloads to start on %s", count, s.m.Name), func(context.Context) (bool, error) {
		starts, err := record.Read[record.Start](s.m.Disk(record.StartsFile))
		n := 0
		for _, start := range starts {
			if start.Time.After(since) {
				n++
			}
		}
		return n >= count, err
	}))
}

// run runs one workload, and returns how it started.
func (s *stage) run(name string) lab.Started {
	s.Helper()
	since := time.Now()
	pod, err := s.Workload(s.ctx, name, s.m.Name)
	s.must(err)
	var started lab.Started
	s.must(s.Await(s.ctx, "the workload "+name+" to run", func(context.Context) (bool, error) {
		all, err := s.Starts(s.m, since)
		i := slices.IndexFunc(all, func(w lab.Started) bool { return types.UID(w.UID) == pod.UID })
		if i >= 0 {
			started = all[i]
		}
		return i >= 0, err
	}))
	s.must(s.Client.CoreV1().Pods(lab.Namespace).Delete(s.ctx, pod.Name, metav1.DeleteOptions{}))
	return started
}

// calm waits until all is well: network and mesh run, the gate is open, and a new
// workload has its mesh. Without nodegate somebody has to see to that.
func (s *stage) calm() {
	s.Helper()
	s.release(record.HoldMesh)
	s.release(record.HoldBase)
	s.awaitUp()
	s.must(s.AwaitPod(s.ctx, "network", "app=base", s.m.Name))
	if s.gated {
		s.must(s.AwaitPod(s.ctx, gate.Namespace, lab.Agents, s.m.Name))
		s.awaitOpen()
	} else {
		s.must(s.RestartPod(s.ctx, "network", "app=mesh", s.m.Name))
	}
	s.must(s.AwaitPod(s.ctx, "network", "app=mesh", s.m.Name))
	if !s.run("calm").Meshed {
		s.Errorf("a workload has no mesh, though all is well again")
	}
}

// span is from one state of a Node, when its gate was closed, until another, when it was
// opened; it ends with 0 if it was not.
type span struct {
	from  lab.NodeSeen
	until uint64
}

// booting are the spans from the first sight of a boot until the gate is opened in it.
func (s *stage) booting() []span {
	var all []span
	boot, done := "", true
	for _, n := range s.Seen.Node(s.m.Name) {
		if n.BootID != boot {
			if !done {
				all[len(all)-1].until = n.Revision
			}
			all = append(all, span{from: n})
			boot, done = n.BootID, false
		}
		if !done && opened(n) {
			all[len(all)-1].until, done = n.Revision, true
		}
	}
	return all
}

// closed are the spans of the machine's gate.
func (s *stage) closed() []span {
	var all []span
	armed := false
	for _, n := range s.Seen.Node(s.m.Name) {
		switch {
		case n.Armed && !armed:
			all = append(all, span{from: n})
		case !n.Armed && armed:
			all[len(all)-1].until = n.Revision
		}
		armed = n.Armed
	}
	return all
}

// schedulerDelay is how long a scheduler may bind by what it knew before.
const schedulerDelay = time.Second

// outcome is what a scenario has done to the workloads of its machine.
type outcome struct {
	starts int
	// harmed have started without their mesh, and of these again were bound before the
	// boot, late when the gate was closed, and reopened after it had been opened again.
	harmed, again, late, reopened int
	// bound is of those workloads that were bound to the node though the gate was
	// closed for a second.
	bound int
	// early were bound before that, and not before the boot was seen; that a guard needs
	// a moment, and a scheduler another. earlyHarmed of these started without their mesh.
	early, earlyHarmed int
}

func (o *outcome) add(more outcome) {
	o.starts += more.starts
	o.harmed += more.harmed
	o.again += more.again
	o.late += more.late
	o.reopened += more.reopened
	o.bound += more.bound
	o.early += more.early
	o.earlyHarmed += more.earlyHarmed
}

func (o outcome) String() string {
	return fmt.Sprintf("%d workloads started, %d without their mesh, of which %d were bound before the boot, %d while the gate was closed, and %d after it was opened again; %d bound to a closed node; %d bound as it closed, of which %d started without their mesh",
		o.starts, o.harmed, o.again, o.late, o.reopened, o.bound, o.early, o.earlyHarmed)
}

func (s *stage) outcome() outcome {
	s.Helper()
	var starts []lab.Started
	s.must(s.Await(s.ctx, "watches to have shown what has started", func(context.Context) (_ bool, err error) {
		starts, err = s.Starts(s.m, s.began)
		return err == nil, err
	}))
	spans := s.closed()
	if s.atOnce {
		spans = append(spans, s.booting()...)
	}
	o := outcome{starts: len(starts)}
	for _, w := range starts {
		if w.Meshed {
			continue
		}
		o.harmed++
		if w.Again {
			o.again++
		}
		switch early, late := boundDuring(spans, w.Seen); {
		case late:
			o.late++
			s.Logf("late: %s, bound %s, started %s", w.Pod, w.Seen.Bound.Format(clock), w.Time.Local().Format(clock))
		case early && w.Seen.Bound.After(s.began):
			o.earlyHarmed++
		case s.openedBefore(spans, w.Seen):
			o.reopened++
			s.Logf("after the gate was opened again: %s, bound %s, started %s", w.Pod, w.Seen.Bound.Format(clock), w.Time.Local().Format(clock))
		}
	}
	for _, p := range s.Seen.Pods(lab.Namespace) {
		if p.Node != s.m.Name || !p.Bound.After(s.began) {
			continue
		}
		switch early, late := boundDuring(spans, p); {
		case late:
			o.bound++
			s.Logf("bound to a closed node: %s/%s, %s", p.Namespace, p.Name, p.Bound.Format(clock))
		case early:
			o.early++
		}
	}
	return o
}

// boundDuring says whether a pod was bound when the gate was closed: late, or so early
// that a scheduler may not have known it.
func boundDuring(spans []span, p lab.PodSeen) (early, late bool) {
	for _, c := range spans {
		if p.BoundRevision < c.from.Revision || c.until != 0 && p.BoundRevision > c.until {
			continue
		}
		if p.Bound.After(c.from.At.Add(schedulerDelay)) {
			return false, true
		}
		early = true
	}
	return early, false
}

// openedBefore says whether a pod was bound after a gate was opened again that had been
// closed in this scenario.
func (s *stage) openedBefore(spans []span, p lab.PodSeen) bool {
	return slices.ContainsFunc(spans, func(c span) bool {
		return c.from.At.After(s.began) && c.until != 0 && p.BoundRevision > c.until
	})
}

// judge says what the outcome must be: some harm without nodegate that a gate can
// prevent, or the scenario shows nothing; and with it none to what was bound when the
// gate was closed, or after it was opened again.
func (s *stage) judge() {
	s.Helper()
	o := s.outcome()
	s.Log(o)
	switch {
	case !s.gated && o.harmed == o.again:
		s.Errorf("without nodegate nothing was harmed: the scenario is void")
	case s.gated && (o.late > 0 || o.reopened > 0 || o.bound > 0):
		s.Errorf("the Node was seen so: %s", s.describe())
	}
}

// clock is how times are told.
const clock = "15:04:05.000"

// describe tells how the Node looked when the scenario began, and from then on.
func (s *stage) describe() string {
	var all strings.Builder
	states := s.Seen.Node(s.m.Name)
	for i, n := range states {
		if i+1 == len(states) || !states[i+1].At.Before(s.began) {
			fmt.Fprintf(&all, "\n%s boot %.4s ready %t armed %t; heartbeat of %.4s ready %t %s", n.At.Format(clock), n.BootID, n.Ready, n.Armed, n.Reported, n.Serves, n.Failing)
		}
	}
	return all.String()
}

// awhile is how long things are as bad as they get.
const awhile = 3 * time.Second

// awaitGone waits until the control plane takes the node for unreachable.
func (s *stage) awaitGone() {
	s.Helper()
	s.awaitNode("to be taken for unreachable", func(n lab.NodeSeen) bool { return !n.Ready })
}

// harm lets the trouble do what it does. Where nothing prevents it, new workloads start
// without their mesh.
func (s *stage) harm() {
	s.Helper()
	if s.gated {
		<-time.After(awhile)
		return
	}
	since := time.Now()
	s.must(s.Await(s.ctx, "3 new workloads to start without their mesh on "+s.m.Name, func(context.Context) (bool, error) {
		starts, err := s.Starts(s.m, since)
		starts = slices.DeleteFunc(starts, func(w lab.Started) bool { return w.Meshed || w.Again })
		return len(starts) >= 3, err
	}))
}

// staysClosed: new pods wait for some time.
func (s *stage) staysClosed() {
	s.Helper()
	s.awaitClosed()
	s.awaitWaiting()
	s.harm()
}

// meshComesLate: a node is up for some time, and its agent, before its mesh serves.
func (s *stage) meshComesLate() {
	s.Helper()
	s.awaitClosed()
	s.awaitReport()
	s.staysClosed()
	s.release(record.HoldMesh)
}

// killMesh ends the mesh, which does not serve until it is released.
func (s *stage) killMesh() {
	s.Helper()
	s.hold(record.HoldMesh)
	count, err := s.m.Signal(syscall.SIGKILL, "standin", "mesh")
	s.must(err)
	if count == 0 {
		s.Errorf("there is no mesh to kill")
	}
}

// restartNetwork has the network write its list anew.
func (s *stage) restartNetwork() {
	s.Helper()
	s.must(s.RestartPod(s.ctx, "network", "app=base", s.m.Name))
	s.must(s.AwaitPod(s.ctx, "network", "app=base", s.m.Name))
}

// keepAgentDown sends the signal to every process of the agent, as soon as it is
// started, until the function is called that it returns.
func (s *stage) keepAgentDown(signal syscall.Signal) (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	var group sync.WaitGroup
	met := 0
	group.Go(func() {
		for ticker := time.NewTicker(50 * time.Millisecond); ctx.Err() == nil; <-ticker.C {
			count, err := s.m.Signal(signal, "nodegate-agent", "")
			if err != nil {
				s.Error(err)
			}
			met += count
		}
	})
	return func() {
		cancel()
		group.Wait()
		if s.gated && met == 0 {
			s.Error("there was no agent to keep down")
		}
		if signal == syscall.SIGSTOP {
			_, err := s.m.Signal(syscall.SIGCONT, "nodegate-agent", "")
			s.must(err)
		}
	}
}

func (s *stage) scaleController(replicas int) {
	s.Helper()
	if !s.gated {
		return
	}
	s.must(s.Patch(s.ctx, "deployment", gate.ControllerAccount, map[string]any{"replicas": replicas}))
	s.must(s.AwaitRoll(s.ctx, "deployment", gate.ControllerAccount))
}

// removeAgents deletes the agents' DaemonSet until the function is called that it
// returns.
func (s *stage) removeAgents() (undo func()) {
	s.Helper()
	if !s.gated {
		return func() {}
	}
	s.must(s.DeleteAgents(s.ctx))
	return func() { s.must(s.Install(s.ctx)) }
}
