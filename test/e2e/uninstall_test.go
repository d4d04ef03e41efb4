//go:build linux && e2e

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/e2e/record"
)

// TestNodes_Uninstall: nothing is left of nodegate, neither on the Nodes nor on the
// disks of the machines, whether it is uninstalled as it should be or somebody deletes
// its namespace first.
func TestNodes_Uninstall(t *testing.T) {
	l := newLab(t, "node-1", "node-2")
	for _, m := range l.Machines {
		newStage(t, l, m, true).powerOn()
	}
	for name, uninstall := range map[string]func(*stage){
		"as it should be":             (*stage).uninstall,
		"the namespace deleted first": (*stage).uninstallLate,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, l, l.Machines[0], true)
			s.must(l.InstallHolding(s.ctx))
			for _, m := range l.Machines {
				newStage(t, l, m, true).calm()
			}
			uninstall(s)
			s.expectUninstalled()
			for _, m := range l.Machines {
				newStage(t, l, m, false).calm()
			}
			s.rebootFree()
		})
	}
}

// uninstall does it as it should be done, which closes no gate.
func (s *stage) uninstall() {
	s.Helper()
	before := len(s.closed())
	left, err := s.Uninstall(s.ctx)
	s.must(err)
	if len(left) > 0 {
		s.Errorf("it is left to people to do %v", left)
	}
	if after := len(s.closed()); after != before {
		s.Errorf("the gate closed meanwhile: %s", s.describe())
	}
}

// uninstallLate: without agents no pod starts where nodegate-cni is chained, and after a
// reboot a node stays closed, until a person uninstalls the rest and does on the nodes
// what is then said.
func (s *stage) uninstallLate() {
	s.Helper()
	s.must(s.DeleteNamespace(s.ctx))
	other := newStage(s.T, s.Lab, s.Machines[1], true)
	held, err := s.Workload(s.ctx, "held", other.m.Name)
	s.must(err)
	s.powerOff()
	s.awaitGone()
	s.powerOn()
	s.awaitUp()
	s.awaitClosed()
	if kept, err := s.removeTaint(s.ctx); err != nil || !kept {
		s.Errorf("the taint could be removed (%v), while its admission is there", err)
	}
	s.awaitEvent(held.UID, "FailedCreatePodSandBox", "nodegate")

	left, err := s.Uninstall(s.ctx)
	s.must(err)
	nodes := map[string]bool{}
	for _, todo := range left {
		nodes[todo.Node] = true
		s.must(s.RunAgent(s.ctx, todo.Node, todo.Args...))
	}
	if len(nodes) != len(s.Machines) {
		s.Errorf("of %d nodes it says what is left to do on %d: %v", len(s.Machines), len(nodes), left)
	}
	s.must(s.Clear(s.ctx, other.m.Name))
}

// expectUninstalled: no Node has a mark of the gate, and no list names a plugin.
func (s *stage) expectUninstalled() {
	s.Helper()
	g := gate.Default().Gates[0]
	for _, m := range s.Machines {
		node, err := s.Client.CoreV1().Nodes().Get(s.ctx, m.Name, metav1.GetOptions{})
		s.must(err)
		for _, annotation := range []string{g.HeartbeatAnnotation(), g.BypassAnnotation()} {
			if value, ok := node.Annotations[annotation]; ok {
				s.Errorf("%s still has %s: %s", m.Name, annotation, value)
			}
		}
		if g.Armed(node) {
			s.Errorf("%s is still closed", m.Name)
		}
		list, err := os.ReadFile(m.Disk(record.ListFile))
		s.must(err)
		for _, plugin := range []string{"mesh-cni", "nodegate-cni"} {
			if strings.Contains(string(list), plugin) {
				s.Errorf("%s is still chained on %s:\n%s", plugin, m.Name, list)
			}
		}
		entries, err := os.ReadDir(m.Disk(gate.DefaultNetDir))
		s.must(err)
		if len(entries) != 1 {
			s.Errorf("beside its list %s has %v", m.Name, entries)
		}
	}
}

// rebootFree: nothing closes the node any more.
func (s *stage) rebootFree() {
	s.Helper()
	since := time.Now()
	s.powerOff()
	s.powerOn()
	s.gated = false
	s.calm()
	for _, n := range s.Seen.Node(s.m.Name) {
		if n.At.After(since) && (n.Armed || n.Reported != "") {
			s.Errorf("after the uninstallation the Node was seen with the gate's marks: %s", s.describe())
			return
		}
	}
}
