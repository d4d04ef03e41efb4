//go:build linux && e2e

package e2e

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/e2e/lab"
	"github.com/nodegate/nodegate/test/e2e/machine"
	"github.com/nodegate/nodegate/test/e2e/record"
)

// scenario is a trouble that a machine has. New workloads are bound to it all the
// while.
type scenario struct {
	name string
	play func(*stage)
}

// troubles are each of one node alone.
func troubles() []scenario {
	return []scenario{
		{"first boot", firstBoot},
		{"slow reboot", slowReboot},
		{"fast reboot", fastReboot},
		{"reboot, and the network writes its list late", rebootLateNetwork},
		{"reboot, and the network writes its list before the agent is up", rebootLateAgent},
		{"node deleted and registered again", nodeDeleted},
		{"mesh killed", meshKilled},
		{"mesh's socket deleted", socketDeleted},
		{"list written anew", listWrittenAnew},
		{"agent killed, and the list written anew", agentKilled},
		{"agent crash-looping, then the list written anew", agentCrashLooping},
		{"agent hung, then the mesh killed", agentHung},
		{"agent evicted, then the mesh killed", agentEvicted},
		{"partition, and the mesh killed", partition},
	}
}

// outages are of parts that all nodes share.
func outages() []scenario {
	return []scenario{
		{"API server restarted, and the mesh killed", apiServerRestarted},
		{"no controller during a slow reboot", noController},
		{"no agents during a reboot", noAgents},
	}
}

// TestNodes_WithoutNodegate shows the harm of every scenario where there is no nodegate.
func TestNodes_WithoutNodegate(t *testing.T) {
	l := newLab(t, "node-1", "node-2")
	for _, m := range l.Machines {
		newStage(t, l, m, false).powerOn()
	}
	playAll(t, l, false)
}

// TestNodes_WithNodegate shows that there is none with it.
func TestNodes_WithNodegate(t *testing.T) {
	l := newLab(t, "node-1", "node-2")
	for _, m := range l.Machines {
		newStage(t, l, m, true).powerOn()
	}
	if err := l.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	playAll(t, l, true)
	t.Run("roll of the agents", func(t *testing.T) { roll(newStage(t, l, l.Machines[0], true), "daemonset", "nodegate-agent") })
	t.Run("roll of the controller", func(t *testing.T) { roll(newStage(t, l, l.Machines[0], true), "deployment", "nodegate-controller") })
}

// playAll plays troubles on all machines at once, and outages one by one.
func playAll(t *testing.T, l *lab.Lab, gated bool) {
	idle := make(chan *machine.Machine, len(l.Machines))
	for _, m := range l.Machines {
		newStage(t, l, m, gated).calm()
		idle <- m
	}
	t.Run("troubles", func(t *testing.T) {
		for _, scene := range troubles() {
			t.Run(scene.name, func(t *testing.T) {
				t.Parallel()
				m := <-idle
				defer func() { idle <- m }()
				newStage(t, l, m, gated).playOne(scene)
			})
		}
	})
	for _, scene := range outages() {
		t.Run(scene.name, func(t *testing.T) {
			newStage(t, l, l.Machines[0], gated).playOne(scene)
		})
	}
}

func (s *stage) playOne(scene scenario) {
	s.Helper()
	end := s.Stream(s.ctx, "stream", s.m.Name)
	s.awaitStarts(s.began, 2)
	scene.play(s)
	s.calm()
	s.must(end(s.ctx))
	s.judge()
}

// fastReboot: the node is back before the control plane has noticed anything.
func fastReboot(s *stage) {
	s.hold(record.HoldMesh)
	s.powerOff()
	s.powerOn()
	s.awaitUp()
	s.meshComesLate()
}

// slowReboot: the control plane takes the node for unreachable meanwhile, and lifts
// that taint when it is back, by a write that must arm.
func slowReboot(s *stage) {
	s.atOnce = s.gated
	s.hold(record.HoldMesh)
	s.powerOff()
	s.awaitGone()
	s.powerOn()
	s.awaitUp()
	s.meshComesLate()
}

// firstBoot: a new machine, which the control plane does not know. Its Node is created
// armed.
func firstBoot(s *stage) {
	s.atOnce = s.gated
	s.powerOff()
	s.must(s.DeleteNode(s.ctx, s.m.Name))
	s.must(s.m.Wipe())
	s.hold(record.HoldMesh)
	s.powerOn()
	s.awaitUp()
	s.meshComesLate()
}

// nodeDeleted: as some who repair nodes do. The Node is created anew, armed.
func nodeDeleted(s *stage) {
	s.atOnce = s.gated
	s.hold(record.HoldMesh)
	s.powerOff()
	s.must(s.DeleteNode(s.ctx, s.m.Name))
	s.powerOn()
	s.awaitUp()
	s.meshComesLate()
}

// rebootLateNetwork: the list of the last boot is loaded, with the plugin, until the
// network writes it anew.
func rebootLateNetwork(s *stage) {
	s.hold(record.HoldBase)
	s.powerOff()
	s.powerOn()
	s.awaitUp()
	s.must(s.AwaitPod(s.ctx, "network", "app=mesh", s.m.Name))
	if s.gated {
		s.awaitOpen()
	}
	// Until then it is a fast reboot; what counts here is the list under an open gate.
	s.began = time.Now()
	s.release(record.HoldBase)
	s.must(s.AwaitPod(s.ctx, "network", "app=base", s.m.Name))
	s.harm()
}

// rebootLateAgent: nobody mends the list for a while.
func rebootLateAgent(s *stage) {
	s.hold(record.HoldBase)
	s.powerOff()
	s.powerOn()
	stop := s.keepAgentDown(syscall.SIGSTOP)
	s.awaitUp()
	s.must(s.AwaitPod(s.ctx, "network", "app=mesh", s.m.Name))
	s.release(record.HoldBase)
	s.must(s.AwaitPod(s.ctx, "network", "app=base", s.m.Name))
	s.staysClosed()
	stop()
}

// meshKilled: and it does not come back soon.
func meshKilled(s *stage) {
	s.killMesh()
	s.awaitClosed()
	s.meshComesLate()
}

func socketDeleted(s *stage) {
	s.must(os.Remove(s.m.Live("/run/mesh/cni.sock")))
	s.staysClosed()
	s.must(s.RestartPod(s.ctx, "network", "app=mesh", s.m.Name))
}

// listWrittenAnew: by the network, which does that whenever it starts.
func listWrittenAnew(s *stage) {
	s.restartNetwork()
	s.harm()
}

// agentKilled: its kubelet starts it again, and it finds the list without the plugin.
func agentKilled(s *stage) {
	if count, err := s.m.Signal(syscall.SIGKILL, "nodegate-agent", ""); err != nil || s.gated && count == 0 {
		s.Errorf("there is no agent to kill (%v)", err)
	}
	s.restartNetwork()
	s.harm()
}

func agentCrashLooping(s *stage) {
	stop := s.keepAgentDown(syscall.SIGKILL)
	s.awaitClosed()
	s.restartNetwork()
	s.staysClosed()
	stop()
	// Another pod, which the kubelet does not hold back for minutes.
	s.must(s.RestartPod(s.ctx, gate.Namespace, gate.AgentLabel+"="+gate.AgentLabelValue, s.m.Name))
}

// agentHung: when it goes on, the mesh is still away.
func agentHung(s *stage) {
	stop := s.keepAgentDown(syscall.SIGSTOP)
	s.awaitClosed()
	s.killMesh()
	s.staysClosed()
	stop()
	s.meshComesLate()
}

func agentEvicted(s *stage) {
	s.must(s.EvictAgent(s.ctx, s.m.Name))
	s.killMesh()
	s.awaitClosed()
	s.meshComesLate()
}

func partition(s *stage) {
	s.must(s.m.Unplug(s.ctx))
	s.awaitGone()
	s.killMesh()
	s.awaitClosed()
	s.must(s.m.Plug(s.ctx))
	s.awaitUp()
	s.meshComesLate()
}

// apiServerRestarted: a scheduler that lost its watch binds by what it knew before, until
// it watches again. Only from then on does a taint hold anything back.
func apiServerRestarted(s *stage) {
	s.must(s.StopAPIServer())
	s.killMesh()
	<-time.After(awhile)
	s.must(s.StartAPIServer(s.ctx))
	s.awaitClosed()
	s.awaitWaiting()
	s.began = time.Now()
	s.meshComesLate()
}

// noController: the write that says that the node is back must arm.
func noController(s *stage) {
	s.atOnce = s.gated
	s.scaleController(0)
	s.hold(record.HoldMesh)
	s.powerOff()
	s.awaitGone()
	s.powerOn()
	s.awaitUp()
	s.meshComesLate()
	s.scaleController(2)
}

// noAgents: nobody opens, and what a reboot closes stays closed.
func noAgents(s *stage) {
	undo := s.removeAgents()
	s.hold(record.HoldMesh)
	s.powerOff()
	s.powerOn()
	s.awaitUp()
	s.staysClosed()
	s.release(record.HoldMesh)
	undo()
}

// roll changes a template. No gate closes meanwhile.
func roll(s *stage, kind, name string) {
	before := len(s.closed())
	s.must(s.Patch(s.ctx, kind, name, map[string]any{"template": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"roll": "1"}},
	}}))
	s.must(s.AwaitRoll(s.ctx, kind, name))
	s.calm()
	if after := len(s.closed()); after != before {
		s.Errorf("the gate closed %d times meanwhile: %s", after-before, s.describe())
	}
}
