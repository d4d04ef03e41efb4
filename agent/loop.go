package agent

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxAttempts bounds the writes of one step: each but the last was made for a
	// Node that somebody changed at the same moment.
	maxAttempts = 5

	// largeOffset is how far the node's clock may be off before it is worth a
	// warning. Heartbeats are right all the same; certificates and logs are not.
	largeOffset = 5 * time.Second
)

// loop is what the one goroutine remembers that gathers, decides and acts.
type loop struct {
	boot     bootID
	uid      types.UID
	retry    retry
	sequence uint64
	spread   float64
	// warned: the clock's offset was large when last looked at.
	warned bool
}

func (a *Agent) run(ctx context.Context) { stepUntil(ctx, a.wake, a.step) }

// stepUntil steps whenever something changed or is due, until the context ends.
func stepUntil(ctx context.Context, wake <-chan struct{}, step func(context.Context) time.Duration) {
	for {
		wait := time.NewTimer(step(ctx))
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wake:
			wait.Stop()
		case <-wait.C:
		}
	}
}

// step does all that is to be done now, and returns how long to wait if nothing
// happens.
func (a *Agent) step(ctx context.Context) time.Duration {
	defer a.board.stepped(a.clock.Now())
	for range maxAttempts {
		v := a.gather()
		a.publish(v)
		d := decide(v)
		if d.after > 0 {
			return d.after
		}
		if held := a.loop.retry.wait(d.attempt(), v.local); held > 0 {
			return held
		}
		if wait := a.act(ctx, v, d); wait > 0 {
			return wait
		}
	}
	return retryBase
}

// gather puts together all that a decision rests on.
func (a *Agent) gather() view {
	if a.loop.boot.id == "" {
		a.loop.boot = a.readBootID()
	}
	node, turn := a.own.get()
	if node != nil && node.UID != a.loop.uid {
		a.startOver(node)
	}
	v := view{
		node:     node,
		turn:     turn,
		boot:     a.loop.boot,
		now:      a.api.Now(),
		local:    a.clock.Now(),
		podUID:   a.podUID,
		sequence: a.loop.sequence + 1,
		spread:   a.loop.spread,
	}
	for _, g := range a.gates {
		v.gates = append(v.gates, gateView{
			verdict: judge(g.candidate(), node, a.loop.boot),
			pace:    g.pace,
			saidNo:  g.saidNo,
		})
	}
	return v
}

func (g *running) candidate() candidate {
	c := candidate{gate: g.gate}
	for _, p := range g.probers {
		c.checks = append(c.checks, candidateCheck{probe: p.Probe, answers: p.remembered()})
	}
	return c
}

// startOver forgets what was done about another Node object.
func (a *Agent) startOver(node *corev1.Node) {
	a.log.Info("Found the Node", "node", a.name, "uid", node.UID, "before", a.loop.uid)
	a.loop.uid = node.UID
	a.loop.retry = retry{}
	for _, g := range a.gates {
		g.pace, g.saidNo = pace{}, false
		a.board.putBack(g.gate.Name, false)
	}
}

// act carries a decision out. It returns how long to wait before anything else,
// zero to look again at once.
func (a *Agent) act(ctx context.Context, v view, d decision) time.Duration {
	a.loop.sequence++
	a.loop.spread = rand.Float64()
	data, err := v.patch(d)
	if err != nil {
		return a.failed(ctx, failureFormat, d, err)
	}
	node, err := a.patchNode(ctx, data)
	if err != nil {
		return a.failed(ctx, classify(err), d, err)
	}
	if a.loop.retry.failures > 0 {
		a.log.Info("Writing the Node works again", "node", a.name)
	}
	a.loop.retry = retry{}
	for _, w := range d.writes {
		a.wrote(w, node)
	}
	a.own.answer(node, v.turn)
	return 0
}

// wrote takes note of a gate's part of a write, and of what admission made of it.
func (a *Agent) wrote(w gateWrite, node *corev1.Node) {
	g := a.running(w.gate.Name)
	g.saidNo = !w.ready
	if w.repeats {
		g.pace = g.pace.took(a.clock.Now())
	}
	putBack := w.opens && w.gate.Armed(node)
	a.metrics.wrote(w, putBack)
	log := a.log.With("node", a.name, "gate", w.gate.Name)
	if w.opens && !putBack {
		log.Info("Opened the gate")
	}
	if a.board.putBack(w.gate.Name, putBack) {
		log.Warn("Admission put the taint back in the write that removed it")
	}
	if w.repeats && g.pace.repeats == contested {
		log.Warn("Gate opens again and again, or what the agent writes is undone: it writes less often")
	}
}

func (a *Agent) running(name string) *running {
	for _, g := range a.gates {
		if g.gate.Name == name {
			return g
		}
	}
	return nil
}

// failed takes note of a failure, reads the Node again where that may help, and
// returns how long to wait.
func (a *Agent) failed(ctx context.Context, reason failure, d decision, err error) time.Duration {
	if ctx.Err() != nil {
		return idle
	}
	a.metrics.writeErrors.WithLabelValues(string(reason)).Inc()
	for _, w := range d.writes {
		if w.ready { // it may be carried out yet; what voids it must then be said anew
			a.running(w.gate.Name).saidNo = false
		}
	}
	if reason == failureStale {
		if err = a.reread(ctx); err == nil {
			return 0
		}
		reason = classify(err)
	}
	if a.loop.retry.reason != reason {
		a.log.Warn("Writing the Node failed, trying again", "node", a.name, "reason", reason, "error", err)
	}
	now := a.clock.Now()
	a.loop.retry = a.loop.retry.failed(reason, d.attempt(), now)
	return a.loop.retry.wait(d.attempt(), now)
}

// attempt names what a decision says, so that news is told from a repetition.
func (d decision) attempt() string {
	var b strings.Builder
	for _, w := range d.writes {
		b.WriteString(w.gate.Name + "=" + strconv.FormatBool(w.ready) + " ")
	}
	return b.String()
}
