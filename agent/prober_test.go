package agent

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/nodegate/nodegate/gate"
)

func newProber(check Check, changed func()) *prober {
	return &prober{
		Probe:  Probe{Name: "socket", Check: check, Dwell: 3 * time.Second, Timeout: 2 * time.Second},
		asking: asking{clock: clock.RealClock{}, interval: time.Second, node: func() *corev1.Node { return nil }, changed: changed},
	}
}

// pass lets fake time pass.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // within synctest it takes no time and is what moves the clock
}

func TestProber_AsksOncePerInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked, changes atomic.Int32
		p := newProber(CheckFunc(func(context.Context) error { asked.Add(1); return nil }), func() { changes.Add(1) })
		go p.run(t.Context())
		pass(10*time.Second + time.Millisecond)
		if got := asked.Load(); got != 11 {
			t.Errorf("asked %d times in 10 s, want 11", got)
		}
		if got := changes.Load(); got != 1 {
			t.Errorf("%d changes, want the first answer's alone", got)
		}
	})
}

// TestProber_AsksAgain at once, when a check has noticed something.
func TestProber_AsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		p := newProber(CheckFunc(func(context.Context) error { asked.Add(1); return nil }), func() {})
		p.again = make(chan struct{}, 1)
		go p.run(t.Context())
		synctest.Wait()
		p.askAgain()
		synctest.Wait()
		if got := asked.Load(); got != 2 {
			t.Errorf("asked %d times, want 2", got)
		}
	})
}

// TestProber_AHungCheckFails: it neither returns nor heeds its context. It has
// answered nevertheless, counts as failing when its dwell is over, and is not
// asked a second time meanwhile.
func TestProber_AHungCheckFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		hang := make(chan struct{})
		p := newProber(CheckFunc(func(context.Context) error {
			if asked.Add(1) == 2 {
				<-hang
			}
			return nil
		}), func() {})
		go p.run(t.Context())
		state := func() State { return p.remembered().state(p.Dwell, false) }

		pass(2900 * time.Millisecond) // asked the second time after 1 s
		if got := state(); got != Passing {
			t.Errorf("%s before its timeout, want passing", got)
		}
		pass(200 * time.Millisecond)
		if got := state(); got != Wavering {
			t.Errorf("%s after its timeout, want wavering", got)
		}
		pass(p.Dwell)
		if got, reason := state(), text(p.remembered().reason); got != Failing || reason != "no answer in 5s" {
			t.Errorf("%s (%s) after its dwell, want failing (no answer in 5s)", got, reason)
		}
		if got := asked.Load(); got != 2 {
			t.Errorf("asked %d times while it hangs", got-1)
		}
		close(hang) // it says that all is well, too late
		synctest.Wait()
		if got := state(); got != Failing {
			t.Errorf("%s by an answer that came too late", got)
		}
		pass(p.interval)
		synctest.Wait()
		if got := state(); got != Passing {
			t.Errorf("%s after a new answer, want passing", got)
		}
	})
}

func TestProber_StopsWhileItsCheckHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hang := make(chan struct{})
		p := newProber(CheckFunc(func(context.Context) error { <-hang; return nil }), func() {})
		stopped := make(chan struct{})
		go func() { p.run(ctx); close(stopped) }()
		synctest.Wait()
		cancel()
		<-stopped
		close(hang)
	})
}

// TestProber_ACheckWithoutItsNodeHasNotAnswered, neither at first nor later.
func TestProber_ACheckWithoutItsNodeHasNotAnswered(t *testing.T) {
	var node *corev1.Node
	p := newProber(ConflistCheck(gate.ConflistCheck{Dir: t.TempDir()}), func() {})
	p.node = func() *corev1.Node { return node }
	ask := func(want State, reason string) {
		t.Helper()
		p.ask(t.Context())
		if got := p.remembered(); got.state(0, false) != want || !strings.Contains(text(got.reason), reason) {
			t.Errorf("%s (%v), want %s (%s)", got.state(0, false), got.reason, want, reason)
		}
	}
	ask(Unknown, "")
	for runtime, reason := range map[string]string{
		"":                  `the runtime is ""`,
		"docker://28.0.0":   `the runtime is "docker://28.0.0"`,
		"cri-o://1.34.0":    "no CNI configuration in ",
		"containerd://2.2.": "no CNI configuration in ",
	} {
		node = &corev1.Node{}
		node.Status.NodeInfo.ContainerRuntimeVersion = runtime
		ask(Failing, reason)
		node = nil
		ask(Failing, reason)
	}
}

func TestShortened(t *testing.T) {
	if shortened(nil) != nil {
		t.Error("no reason became one")
	}
	got := text(shortened(errors.New("two\nlines\x00 " + strings.Repeat("é", 1<<20))))
	if len(got) > maxReasonBytes+len("…") || !strings.HasPrefix(got, "two lines  é") || !strings.HasSuffix(got, "é…") {
		t.Errorf("%q of %d bytes", got, len(got))
	}
}
