package guard

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/notice"
)

// patrolPeriod is the time from one look at the whole fleet to the next.
const patrolPeriod = 10 * time.Second

// term is what a guard holds while it leads. The zero value is that of a guard
// that does not lead yet.
type term struct {
	// leading is set once the term has begun.
	leading atomic.Bool

	mu       sync.Mutex
	suspend  notice.Suspension
	breakers map[string]*breaker
	tallies  map[string]tally
	// agentless is since when Nodes are known to have no agent, and whether that
	// was told.
	agentless map[string]map[types.UID]*agentless
	// shouting are the gates of which it was said that their breaker has tripped.
	shouting map[string]bool
}

type agentless struct {
	since time.Time
	told  bool
}

// begin takes the lead over, once: it counts the fleet and goes on from what the
// guard before has left on the Lease. Nothing is armed before.
func (g *Guard) begin(ctx context.Context) error {
	if g.term.leading.Load() {
		return nil
	}
	g.term.mu.Lock()
	defer g.term.mu.Unlock()
	if g.term.leading.Load() {
		return nil
	}
	cfg, now := g.configuration(), g.now()
	tallies, err := g.census(ctx, cfg.Gates)
	if err != nil {
		return err
	}
	g.term.tallies = tallies
	g.term.breakers, g.term.shouting = map[string]*breaker{}, map[string]bool{}
	g.term.agentless = map[string]map[types.UID]*agentless{}
	if g.Lease != nil {
		g.inherit(now)
	}
	g.term.leading.Store(true)
	return nil
}

// inherit reads what the Lease tells.
func (g *Guard) inherit(now time.Time) {
	notices := g.Lease.notices()
	for key, value := range notices {
		name, ok := strings.CutPrefix(key, gate.BreakerPrefix)
		if _, known := g.term.tallies[name]; ok && known {
			g.term.breakers[name] = parseBreaker(value, now)
		}
	}
	var longest time.Duration
	for _, t := range g.term.tallies {
		longest = max(longest, t.interval)
	}
	vacant, led := g.Lease.vacancy()
	g.term.suspend = suspend(vacant, led, longest, notice.ParseSuspension(notices[gate.SuspendedAnnotation]), now)
	if s := g.term.suspend; s.Holds(now) {
		g.Metrics.suspended(true)
		g.log().Warn("Nodes are not armed for Expired or AgentAbsent for now", "reason", s.Reason, "until", s.Until)
		g.tellOfFleet(corev1.EventTypeWarning, "ExpirySuspended", "Suspend",
			"Nodes are not armed for Expired or AgentAbsent until "+stamp(s.Until)+": "+s.Reason)
	}
}

// lead looks at the whole fleet, over and over, until the context ends.
func (g *Guard) lead(ctx context.Context) error {
	for {
		if err := g.patrol(ctx); err != nil && ctx.Err() == nil {
			g.log().Error("Looking at the whole fleet", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(patrolPeriod):
		case <-g.reconfigured:
		}
	}
}

// patrol counts the fleet anew, says what has changed, and brings the Lease up to
// date.
func (g *Guard) patrol(ctx context.Context) error {
	if err := g.begin(ctx); err != nil {
		return err
	}
	cfg, now := g.configuration(), g.now()
	tallies, err := g.census(ctx, cfg.Gates)
	if err != nil {
		return err
	}
	g.term.mu.Lock()
	defer g.term.mu.Unlock()
	g.forgetRemoved(tallies)
	g.term.tallies = tallies
	for name, t := range tallies {
		g.reportAgentless(name, t.agentless, now)
		b := g.breaker(name)
		b.lapse(now)
		b.announced = 0
		g.shout(name, b)
	}
	g.endSuspension(now)
	return g.publish(ctx)
}

// forgetRemoved forgets the gates that the configuration does not name any more.
func (g *Guard) forgetRemoved(now map[string]tally) {
	for name := range g.term.tallies {
		if _, ok := now[name]; ok {
			continue
		}
		delete(g.term.breakers, name)
		delete(g.term.agentless, name)
		delete(g.term.shouting, name)
		g.silent.forget(name)
		g.ages.forget(name)
		g.memory.forgetGate(name)
		g.Metrics.forget(name)
	}
}

// endSuspension says that it is over, once. Nodes that were held back look again
// by themselves.
func (g *Guard) endSuspension(now time.Time) {
	if g.term.suspend.Until.IsZero() || g.term.suspend.Holds(now) {
		return
	}
	g.term.suspend = notice.Suspension{}
	g.Metrics.suspended(false)
	g.log().Info("Nodes are armed for Expired and AgentAbsent again")
	g.tellOfFleet(corev1.EventTypeNormal, "ExpiryResumed", "Resume", "Nodes are armed for Expired and AgentAbsent again")
}

// reportAgentless tells of governed Nodes where no agent can run, of each once,
// and not before the state has lasted for [Grace]: a Node that is being set up may
// carry taints that are gone in a moment.
func (g *Guard) reportAgentless(name string, nodes map[types.UID]*corev1.Node, now time.Time) {
	g.Metrics.agentless(name, len(nodes))
	known := g.term.agentless[name]
	if known == nil {
		known = map[types.UID]*agentless{}
		g.term.agentless[name] = known
	}
	maps.DeleteFunc(known, func(uid types.UID, _ *agentless) bool { return nodes[uid] == nil })
	for uid, node := range nodes {
		if known[uid] == nil {
			known[uid] = &agentless{since: now}
		}
		if known[uid].told || now.Sub(known[uid].since) < Grace {
			continue
		}
		known[uid].told = true
		g.log().Warn("No agent can run on a governed Node", "node", node.Name, "gate", name)
		g.tellOfNode(node, corev1.EventTypeWarning, "NoAgentCanRun", "Govern/"+name,
			fmt.Sprintf("Gate %q governs this Node, but no agent DaemonSet can run a pod here: it is never armed for Expired or AgentAbsent, and once armed nothing opens it", name))
	}
}

// breaker is the gate's, with the limit that follows from the last count.
func (g *Guard) breaker(name string) *breaker {
	b := g.term.breakers[name]
	if b == nil {
		b = &breaker{}
		g.term.breakers[name] = b
	}
	b.limit = fleetLimit(g.term.tallies[name].governed)
	return b
}

// shout says when a breaker trips, and when it has closed again.
func (g *Guard) shout(name string, b *breaker) {
	g.Metrics.breakerTripped(name, b.tripped)
	if b.tripped == g.term.shouting[name] {
		return
	}
	g.term.shouting[name] = b.tripped
	if !b.tripped {
		g.log().Info("The breaker has closed again", "gate", name)
		g.tellOfFleet(corev1.EventTypeNormal, "BreakerClosed", "Resume/"+name, fmt.Sprintf("Gate %q: Nodes are armed for Expired and AgentAbsent again", name))
		return
	}
	message := fmt.Sprintf("Gate %q: %d Nodes were armed for Expired or AgentAbsent within %s, more would be suspicious; others wait", name, b.count(), breakerWindow)
	g.log().Error("The breaker has tripped", "gate", name, "armed", b.count(), "limit", b.limit, "window", breakerWindow)
	g.tellOfFleet(corev1.EventTypeWarning, "BreakerTripped", "Trip/"+name, message)
}

// publish brings the Lease up to date.
func (g *Guard) publish(ctx context.Context) error {
	if g.Lease == nil {
		return nil
	}
	notices := map[string]string{gate.ModeAnnotation: string(g.configuration().Mode)}
	if !g.term.suspend.Until.IsZero() {
		notices[gate.SuspendedAnnotation] = g.term.suspend.String()
	}
	for name, b := range g.term.breakers {
		if b.tripped || b.count() > 0 {
			notices[gate.BreakerPrefix+name] = b.String()
		}
	}
	return g.Lease.publish(ctx, notices)
}

// restrain holds back what rests on an agent's silence alone, while that is
// suspended or the breaker has tripped: such a step is not acted on, and looked at
// again when it may be.
func (g *Guard) restrain(ctx context.Context, mode gate.Mode, steps []step) error {
	for i := range steps {
		s := &steps[i]
		if !s.arm || !s.reason.limited() {
			continue
		}
		again, err := g.permit(ctx, mode, s)
		if err != nil {
			return err
		}
		if !again.IsZero() {
			s.arm, s.lookAgain = false, again
		}
	}
	return nil
}

// permit returns when to ask again, zero if the step may be acted on. What is
// permitted stands on the Lease before it is done.
func (g *Guard) permit(ctx context.Context, mode gate.Mode, s *step) (time.Time, error) {
	g.term.mu.Lock()
	defer g.term.mu.Unlock()
	if g.term.suspend.Holds(s.in.now) {
		return g.term.suspend.Until, nil
	}
	if mode != gate.ModeEnforce {
		return time.Time{}, nil
	}
	b := g.breaker(s.in.gate.Name)
	tripped := b.tripped
	more, again := b.take(s.in.node.Name, s.in.now)
	g.shout(s.in.gate.Name, b)
	if !again.IsZero() {
		if !tripped {
			return again, g.publish(ctx)
		}
		return again, nil
	}
	s.reserved = more
	if b.announced >= 0 {
		return time.Time{}, nil
	}
	b.announce()
	err := g.publish(ctx)
	if err != nil {
		b.announced = -1 // this one is not told of, and is given back
	}
	return time.Time{}, err
}

// release gives back what the breaker had reserved for a write that was not made.
func (g *Guard) release(steps []step) {
	g.term.mu.Lock()
	defer g.term.mu.Unlock()
	for _, s := range steps {
		if s.reserved {
			g.breaker(s.in.gate.Name).untake(s.in.node.Name)
		}
	}
}
