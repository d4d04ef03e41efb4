package agent

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nodegate/nodegate/internal/conflist"
)

// board is where the loop shows what it found, for the endpoints.
type board struct {
	mu       sync.Mutex
	step     time.Time
	verdicts []verdict
	// returned are the gates whose taint admission put back when it was removed.
	returned map[string]bool
}

func (b *board) stepped(at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.step = at
}

func (b *board) lastStep() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.step
}

// swap shows other verdicts and returns those shown before.
func (b *board) swap(verdicts []verdict) []verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.verdicts
	b.verdicts = verdicts
	return before
}

// putBack notes whether the gate's taint came back, and reports whether that is
// new.
func (b *board) putBack(gate string, returned bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.returned == nil {
		b.returned = map[string]bool{}
	}
	before := b.returned[gate]
	b.returned[gate] = returned
	return returned && !before
}

// publish shows the verdicts, and logs each change once.
func (a *Agent) publish(v view) {
	verdicts := make([]verdict, 0, len(v.gates))
	for _, g := range v.gates {
		verdicts = append(verdicts, g.verdict)
		a.metrics.show(g.verdict)
	}
	before := a.board.swap(verdicts)
	for i, now := range verdicts {
		old := verdict{}
		if i < len(before) {
			old = before[i]
		}
		a.report(old, now)
	}
	a.reportClock()
}

// report logs what changed from one verdict of a gate to the next.
func (a *Agent) report(old, now verdict) {
	log := a.log.With("node", a.name, "gate", now.gate.Name)
	for i, check := range now.checks {
		was := Unknown
		if i < len(old.checks) {
			was = old.checks[i].state
		}
		if check.state == was {
			continue
		}
		a.metrics.transitions.WithLabelValues(now.gate.Name, check.name, string(check.state)).Inc()
		log.Info("Check changed its state", "check", check.name, "from", was, "to", check.state, "reason", text(check.reason))
	}
	if text(old.boot) != text(now.boot) {
		log.Info("Boot id's agreement with the Node's changed", "agrees", now.boot == nil, "reason", text(now.boot))
	}
	if now.known && (!old.known || old.ready != now.ready) {
		log.Info("Gate's readiness changed", "ready", now.ready, "failing", now.failing())
	}
	if old.gate != nil && old.armed != now.armed {
		log.Info("Node's taint changed", "armed", now.armed)
	}
}

// reportClock warns when the node's clock is found to be far off, once.
func (a *Agent) reportClock() {
	offset, known := a.api.Offset()
	large := known && offset.Abs() > largeOffset
	switch {
	case large && !a.loop.warned:
		a.log.Warn("Node's clock is far from the API server's", "node", a.name, "offset", offset.Round(time.Millisecond))
	case !large && a.loop.warned:
		a.log.Info("Node's clock is near the API server's again", "node", a.name)
	}
	a.loop.warned = large
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// maxSilence is how long a step may take, all requests timing out, before the
// loop counts as stuck.
const maxSilence = idle + 2*maxAttempts*requestTimeout + time.Minute

// ServeHealth answers whether the agent itself works, whatever the checks say, and
// whether another start would do any good.
func (a *Agent) ServeHealth(w http.ResponseWriter, _ *http.Request) {
	step := a.board.lastStep()
	if silent := a.clock.Since(step); !step.IsZero() && silent > maxSilence {
		http.Error(w, fmt.Sprintf("the loop has done nothing for %s", silent.Round(time.Second)), http.StatusInternalServerError)
		return
	}
	if reason := a.restartFor(); reason != nil {
		http.Error(w, reason.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

func (a *Agent) restartFor() error {
	if a.pods != nil {
		if reason := removed(filepath.Dir(a.pods.Path)); reason != nil {
			return fmt.Errorf("answering the CNI plugin: %w", reason)
		}
	}
	for _, g := range a.gates {
		for _, p := range g.probers {
			check, ok := p.Check.(restarting)
			if !ok {
				continue
			}
			if reason := check.restartFor(); reason != nil {
				return fmt.Errorf("gate %s, check %s: %w", g.gate.Name, p.Name, reason)
			}
		}
	}
	return nil
}

// removed reports that a directory is not what the node has at its path.
func removed(dir string) error {
	if conflist.Removed(dir) {
		return fmt.Errorf("%s %w", dir, conflist.ErrRemoved)
	}
	return nil
}

// ServeReady answers whether every gate is ready, with the reasons in the body
// either way.
func (a *Agent) ServeReady(w http.ResponseWriter, _ *http.Request) {
	ok, reasons := a.Ready()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = io.WriteString(w, reasons)
}

// Ready reports whether every gate is ready, and why, for people. It is what the
// heartbeats say.
func (a *Agent) Ready() (ok bool, reasons string) {
	a.board.mu.Lock()
	defer a.board.mu.Unlock()
	if len(a.board.verdicts) == 0 {
		return false, "starting\n"
	}
	var b strings.Builder
	ok = true
	for _, v := range a.board.verdicts {
		ok = ok && v.ready
		describe(&b, v, a.board.returned[v.gate.Name])
	}
	return ok, b.String()
}

// describe writes a verdict for people.
func describe(w io.Writer, v verdict, returned bool) {
	switch {
	case v.ready:
		fmt.Fprintf(w, "gate %s: ready\n", v.gate.Name)
	case v.known:
		fmt.Fprintf(w, "gate %s: not ready\n", v.gate.Name)
	default:
		fmt.Fprintf(w, "gate %s: waiting for the Node and for a first answer of every check\n", v.gate.Name)
	}
	for _, check := range v.checks {
		fmt.Fprintf(w, "  check %s: %s%s\n", check.name, check.state, because(check.reason))
	}
	if v.boot != nil {
		fmt.Fprintf(w, "  boot: %s\n", v.boot)
	}
	switch {
	case v.armed && returned:
		fmt.Fprintln(w, "  taint: put back by admission in the write that removed it")
	case v.armed:
		fmt.Fprintln(w, "  taint: there")
	}
}

func because(reason error) string {
	if reason == nil {
		return ""
	}
	return ": " + reason.Error()
}
