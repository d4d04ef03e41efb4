package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// prober asks one check over and over and remembers its answers.
type prober struct {
	Probe
	clock    clock.Clock
	interval time.Duration
	// changed is called after an answer that may change a verdict.
	changed func()

	mu      sync.Mutex
	answers answers
}

// run asks until the context ends.
func (p *prober) run(ctx context.Context) {
	for {
		p.ask(ctx)
		select {
		case <-ctx.Done():
			return
		case <-p.clock.After(p.interval):
		}
	}
}

// ask takes one answer. A check that hangs beyond its timeout has answered that
// it does not serve, and does so again each interval; it is not asked anew
// before it returns, so that hung checks do not pile up, and what it then says
// is out of date.
func (p *prober) ask(ctx context.Context) {
	asked := p.clock.Now()
	bounded, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- p.Check.Check(bounded) }()

	wait, late := p.Timeout, false
	for {
		select {
		case <-ctx.Done():
			return
		case reason := <-answer:
			if !late {
				p.record(reason)
			}
			return
		case <-p.clock.After(wait):
			p.record(fmt.Errorf("no answer in %s", p.clock.Since(asked).Round(time.Second/10)))
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
