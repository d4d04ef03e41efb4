package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// asking is what the checks of one process are asked with.
type asking struct {
	clock    clock.Clock
	interval time.Duration
	// node is the agent's own as last seen.
	node func() *corev1.Node
	// changed is called after an answer that may change a verdict.
	changed func()
}

// prober asks one check over and over and remembers its answers.
type prober struct {
	Probe
	asking
	// again has a message when the check is to be asked at once.
	again chan struct{}

	mu      sync.Mutex
	answers answers
}

// prepare returns the gate with a prober of each check. Those that notice something
// log it, and count it in events, if there are any.
func (s asking) prepare(g Gate, log *slog.Logger, events *prometheus.CounterVec) *running {
	r := &running{gate: g.Gate}
	for _, probe := range g.Probes {
		p := &prober{Probe: probe, asking: s, again: make(chan struct{}, 1)}
		if check, ok := p.Check.(noticing); ok {
			of := events
			if of != nil {
				of = of.MustCurryWith(prometheus.Labels{"gate": g.Name, "check": p.Name})
			}
			check.notice(log.With("gate", g.Name, "check", p.Name), of, p.askAgain)
		}
		r.probers = append(r.probers, p)
	}
	return r
}

// lastWord is how long a check may take to say why it has no answer, when its
// context has ended.
const lastWord = 50 * time.Millisecond

// run asks until the context ends.
func (p *prober) run(ctx context.Context) {
	for {
		p.ask(ctx)
		select {
		case <-ctx.Done():
			return
		case <-p.clock.After(p.interval):
		case <-p.again:
		}
	}
}

// follow lets a check that does so follow something until the context ends.
func (p *prober) follow(ctx context.Context) {
	if check, ok := p.Check.(follower); ok {
		check.follow(ctx)
	}
}

// missed asks a check that can tell.
func (p *prober) missed(began time.Time) (again bool, reason error) {
	if check, ok := p.Check.(missing); ok {
		return check.missed(began)
	}
	return false, nil
}

// askAgain makes the prober ask without waiting for its interval's end.
func (p *prober) askAgain() { wakeUp(p.again) }

// ask takes one answer. A check that hangs beyond its timeout has answered that
// it does not serve, and does so again each interval; it is not asked anew
// before it returns, so that hung checks do not pile up, and what it then says
// is out of date.
func (p *prober) ask(ctx context.Context) {
	asked := p.clock.Now()
	bounded, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- p.Check.Check(bounded, p.node()) }()

	wait, late := p.Timeout+lastWord, false
	for {
		select {
		case <-ctx.Done():
			return
		case reason := <-answer:
			if !late && !errors.Is(reason, ErrNoNode) {
				p.record(shortened(reason))
			}
			return
		case <-p.clock.After(wait):
			p.record(fmt.Errorf("no answer in %s", (p.clock.Since(asked) - lastWord).Round(time.Second/10)))
			wait, late = p.interval, true
		}
	}
}

func (p *prober) record(reason error) {
	p.mu.Lock()
	before := p.answers
	p.answers = before.and(reason, p.clock.Now())
	after := p.answers
	p.mu.Unlock()
	if differ(before, after, p.Dwell) {
		p.changed()
	}
}

// maxReasonBytes bounds what a check may say: it may quote a file.
const maxReasonBytes = 300

// shortened makes a reason one line of bounded length.
func shortened(reason error) error {
	if reason == nil {
		return nil
	}
	line := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, reason.Error())
	if len(line) > maxReasonBytes {
		line = strings.ToValidUTF8(line[:maxReasonBytes], "") + "…"
	}
	return errors.New(line)
}

// remembered returns the answers so far.
func (p *prober) remembered() answers {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answers
}

// differ reports whether two memories may lead to different verdicts, or to one
// that reads otherwise.
func differ(a, b answers, dwell time.Duration) bool {
	return a.state(dwell, false) != b.state(dwell, false) || a.state(dwell, true) != b.state(dwell, true) ||
		text(a.reason) != text(b.reason)
}
