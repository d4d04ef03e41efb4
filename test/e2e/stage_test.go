//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/e2e/lab"
	"github.com/nodegate/nodegate/test/e2e/machine"
	"github.com/nodegate/nodegate/test/e2e/record"
)

// The files by which network and mesh are told to wait.
const (
	holdMesh = "/etc/mesh/hold"
	holdBase = "/etc/machine/hold-base"
)

// stage is a machine on which a scenario plays, with or without nodegate.
type stage struct {
	*testing.T
	*lab.Lab
	ctx   context.Context
	m     *machine.Machine
	gated bool
	began time.Time
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

// node is the last state that was seen, since a time.
func (s *stage) node(since time.Time) (lab.NodeSeen, bool) {
	states := s.Seen.Node(s.m.Name)
	if len(states) == 0 || states[len(states)-1].At.Before(since) {
		return lab.NodeSeen{}, false
	}
	return states[len(states)-1], true
}

// awaitNode waits for a state of the Node, the last one or a later one.
func (s *stage) awaitNode(what string, condition func(lab.NodeSeen) bool) {
	s.Helper()
	s.must(s.Await(s.ctx, s.m.Name+" "+what, func(context.Context) (bool, error) {
		node, ok := s.node(time.Time{})
		return ok && condition(node), nil
	}))
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

// awaitOpen waits until the Node is up and open.
func (s *stage) awaitOpen() {
	s.Helper()
	s.awaitNode("to be open", func(n lab.NodeSeen) bool { return n.BootID == s.m.BootID() && n.Ready && !n.Armed })
}

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
	return started
}

// calm waits until all is well: network and mesh run, the gate is open, and a new
// workload has its mesh. Without nodegate somebody has to see to that.
func (s *stage) calm() {
	s.Helper()
	s.release(holdMesh)
	s.release(holdBase)
	s.awaitUp()
	s.must(s.AwaitPod(s.ctx, "network", "app=base", s.m.Name))
	if s.gated {
		s.must(s.AwaitPod(s.ctx, gate.Namespace, gate.AgentLabel+"="+gate.AgentLabelValue, s.m.Name))
		s.awaitOpen()
	} else {
		s.must(s.RestartPod(s.ctx, "network", "app=mesh", s.m.Name))
	}
	s.must(s.AwaitPod(s.ctx, "network", "app=mesh", s.m.Name))
	if !s.run("calm").Meshed {
		s.Errorf("a workload has no mesh, though all is well again")
	}
}

// span is a time in which a gate was closed.
type span struct{ from, to time.Time }

// closed are the spans of the machine's gate; the last may end in the future.
func (s *stage) closed() []span {
	var all []span
	armed := false
	for _, n := range s.Seen.Node(s.m.Name) {
		switch {
		case n.Armed && !armed:
			all = append(all, span{n.At, time.Now().Add(time.Hour)})
		case !n.Armed && armed:
			all[len(all)-1].to = n.At
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
	// harmed have started without their mesh, and of these late was bound when the
	// gate was closed.
	harmed, late int
	// bound is of those workloads that were bound to the node though the gate was
	// closed for a second.
	bound int
}

func (o outcome) String() string {
	return fmt.Sprintf("%d workloads started, %d without their mesh, of which %d were bound while the gate was closed; %d bound to a closed node",
		o.starts, o.harmed, o.late, o.bound)
}

func (s *stage) outcome() outcome {
	s.Helper()
	starts, err := s.Starts(s.m, s.began)
	s.must(err)
	spans := s.closed()
	during := func(at time.Time) bool {
		return slices.ContainsFunc(spans, func(c span) bool { return at.After(c.from.Add(schedulerDelay)) && at.Before(c.to) })
	}
	o := outcome{starts: len(starts)}
	for _, w := range starts {
		if w.Meshed {
			continue
		}
		o.harmed++
		if during(w.Seen.Bound) {
			o.late++
		}
	}
	for _, p := range s.Seen.Pods(lab.Namespace) {
		if p.Node == s.m.Name && p.Bound.After(s.began) && during(p.Bound) {
			o.bound++
		}
	}
	return o
}

// judge says what the outcome must be: some harm without nodegate, or the scenario
// shows nothing; and with it none to what was bound when the gate was closed.
func (s *stage) judge(o outcome) {
	s.Helper()
	s.Log(o)
	if !s.gated {
		if o.harmed == 0 {
			s.Errorf("without nodegate nothing was harmed: the scenario is void")
		}
		return
	}
	if o.late > 0 || o.bound > 0 {
		s.Errorf("%s; closed: %s", o, s.describe())
	}
}

func (s *stage) describe() string {
	var all []string
	for _, c := range s.closed() {
		all = append(all, fmt.Sprintf("%s-%s", c.from.Format("05.000"), c.to.Format("05.000")))
	}
	return strings.Join(all, " ")
}
