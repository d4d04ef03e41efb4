//go:build linux && e2e

package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/test/e2e/lab"
	"github.com/nodegate/nodegate/test/e2e/machine"
	"github.com/nodegate/nodegate/test/e2e/record"
)

var (
	soakRounds = flag.Int("soak-rounds", 6, "how many reboots, all machines together")
	soakSeed   = flag.Uint64("soak-seed", 1, "seed of their flavours")
)

// TestNodes_RebootAgainAndAgain reboots nodes in random ways, under a steady stream of
// new pods: first without nodegate, for contrast, then with it and nodegate-cni.
func TestNodes_RebootAgainAndAgain(t *testing.T) {
	for _, gated := range []bool{false, true} {
		t.Run(map[bool]string{false: "without", true: "with"}[gated], func(t *testing.T) { soak(t, gated) })
	}
}

func soak(t *testing.T, gated bool) {
	l := newLab(t, "node-1", "node-2", "control-plane")
	for _, m := range l.Machines {
		newStage(t, l, m, gated).powerOn()
	}
	if gated {
		if err := l.InstallHolding(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Else there is no guard while both nodes are down.
		if err := l.PinController(t.Context(), "control-plane"); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range l.Machines {
		newStage(t, l, m, gated).calm()
	}
	var latencies latencies
	t.Run("nodes", func(t *testing.T) {
		for i, m := range l.Machines[:2] {
			t.Run(m.Name, func(t *testing.T) {
				t.Parallel()
				soakOne(newStage(t, l, m, gated), i, &latencies)
			})
		}
	})
	t.Log(latencies.String())
}

// soakBound are on each node all the while, and start again at every reboot.
const soakBound = 2

// soakOne reboots one machine, with flavours of its own.
func soakOne(s *stage, number int, latencies *latencies) {
	random := rand.New(rand.NewPCG(*soakSeed, uint64(number+1)))
	s.atOnce = s.gated
	var total outcome
	bound := s.bindPods(soakBound)
	end := s.Stream(s.ctx, "stream", s.m.Name)
	for round := range *soakRounds / 2 {
		f := randomFlavour(random)
		s.began = time.Now()
		s.rebootAs(f)
		if s.gated {
			s.awaitOpen()
			latencies.add(s, bound)
		}
		s.awaitStarts(time.Now(), 3)
		o := s.outcome()
		s.Logf("%d: %s: %s", round, f, o)
		if s.gated && (o.late > 0 || o.bound > 0 || o.harmed > 0 && !f.rewrites) {
			s.Errorf("the Node was seen so: %s", s.describe())
		}
		total.add(o)
	}
	s.must(end(s.ctx))
	s.Logf("all: %s", total)
	if !s.gated && total.harmed == 0 {
		s.Error("without nodegate nothing was harmed")
	}
}

// flavour is how a reboot goes.
type flavour struct {
	// slow: the control plane notices that the node is away.
	slow bool
	// twice: the node fails again while it comes up.
	twice bool
	// network is how long that takes after the node is up, and mesh how long after that.
	network, mesh time.Duration
	// rewrites: the network writes its list anew, as many do when they start. Until an
	// agent is up nobody mends it, and bound pods start without what is missing in it.
	rewrites bool
}

func (f flavour) String() string {
	return fmt.Sprintf("slow %t, twice %t, network late by %s, mesh by %s, list written anew %t", f.slow, f.twice, f.network, f.mesh, f.rewrites)
}

func randomFlavour(r *rand.Rand) flavour {
	late := func(most time.Duration) time.Duration {
		if r.IntN(3) == 0 {
			return 0
		}
		return time.Duration(r.Int64N(int64(most))).Round(time.Millisecond)
	}
	return flavour{
		slow: r.IntN(3) == 0, twice: r.IntN(5) == 0,
		network: late(2 * time.Second), mesh: late(4 * time.Second), rewrites: r.IntN(3) == 0,
	}
}

func (s *stage) rebootAs(f flavour) {
	s.Helper()
	if f.rewrites {
		s.release(record.KeepList)
	} else {
		s.hold(record.KeepList)
	}
	if f.network > 0 {
		s.hold(record.HoldBase)
	}
	if f.mesh > 0 {
		s.hold(record.HoldMesh)
	}
	s.powerOff()
	if f.slow {
		s.awaitGone()
	}
	s.powerOn()
	if f.twice {
		s.awaitNode("to begin its boot", func(n lab.NodeSeen) bool { return n.BootID == s.m.BootID() })
		s.powerOff()
		s.powerOn()
	}
	s.awaitUp()
	<-time.After(f.network)
	s.release(record.HoldBase)
	if f.mesh > 0 && s.gated {
		// From there on only the mesh is waited for.
		s.awaitNode("to be told that its mesh does not serve", func(n lab.NodeSeen) bool { return n.Reported == s.m.BootID() && !n.Serves })
	}
	<-time.After(f.mesh)
	s.release(record.HoldMesh)
}

// latencies are of all reboots with nodegate.
type latencies struct {
	mu sync.Mutex
	// arm: from the first sight of a boot, where the gate was open, to its being closed.
	// open: from the mesh's serving, of which the agent had said that it does not, to the
	// gate's being open. pending: from that to the first pod that was kept waiting and
	// runs. bound: from that to the start of a pod that was bound before the reboot.
	arm, open, pending, bound []time.Duration
}

// add adds what the last boot of a machine shows, and waits until pods that were bound
// before it have started.
func (l *latencies) add(s *stage, bound []types.UID) {
	s.Helper()
	started := s.boundStarts(bound)
	serves, err := record.Read[record.Serve](s.m.Disk(record.ServesFile))
	s.must(err)
	l.mu.Lock()
	defer l.mu.Unlock()
	states := bootStates(s.Seen.Node(s.m.Name), s.m)
	closed := slices.IndexFunc(states, func(n lab.NodeSeen) bool { return n.Armed })
	if closed < 0 {
		s.Errorf("the gate was never closed in this boot")
		return
	}
	if closed > 0 {
		l.arm = append(l.arm, states[closed].At.Sub(states[0].At))
	}
	first := slices.IndexFunc(states, opened)
	if first < 0 || len(serves) == 0 {
		return
	}
	at, served := states[first].At, serves[len(serves)-1].Time
	told := slices.ContainsFunc(states[:first], func(n lab.NodeSeen) bool {
		return n.Reported == n.BootID && !n.Serves && n.At.Before(served)
	})
	if told && at.After(served) {
		l.open = append(l.open, at.Sub(served))
	}
	for _, w := range started {
		if w.Time.After(at) { // else nothing held it back
			l.bound = append(l.bound, w.Time.Sub(at))
		}
	}
	if took, ok := firstRunning(s.Lab, s.m, states[closed].At, at); ok {
		l.pending = append(l.pending, took)
	}
}

// bootStates are those of the last boot.
func bootStates(all []lab.NodeSeen, m *machine.Machine) []lab.NodeSeen {
	i := slices.IndexFunc(all, func(n lab.NodeSeen) bool { return n.BootID == m.BootID() })
	if i < 0 {
		return nil
	}
	return all[i:]
}

// firstRunning is how long after the opening the first of those pods ran that were
// created while the gate was closed. It waits for one, if there is any.
func firstRunning(l *lab.Lab, m *machine.Machine, closed, opened time.Time) (time.Duration, bool) {
	for began := time.Now(); time.Since(began) < 5*time.Second; <-time.After(100 * time.Millisecond) {
		var first time.Duration
		for _, p := range l.Seen.Pods(lab.Namespace) {
			if p.Node != m.Name || p.Created.Before(closed) || !p.Created.Before(opened) || p.Bound.Before(opened) || p.Running.IsZero() {
				continue
			}
			if took := p.Running.Sub(opened); first == 0 || took < first {
				first = took
			}
		}
		if first > 0 {
			return first, true
		}
	}
	return 0, false
}

func (l *latencies) String() string {
	return fmt.Sprintf("a new boot seen -> gate closed: %s; mesh serves -> gate open: %s; gate open -> a pending pod runs: %s; gate open -> a bound pod runs: %s",
		quantiles(l.arm), quantiles(l.open), quantiles(l.pending), quantiles(l.bound))
}

// quantiles are the median and the 99th percentile.
func quantiles(samples []time.Duration) string {
	if len(samples) == 0 {
		return "not seen"
	}
	samples = slices.Sorted(slices.Values(samples))
	at := func(q float64) time.Duration {
		return samples[min(len(samples)-1, int(q*float64(len(samples))))].Round(time.Millisecond)
	}
	return fmt.Sprintf("p50 %s, p99 %s of %d", at(0.5), at(0.99), len(samples))
}
