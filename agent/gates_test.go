package agent

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"

	"github.com/nodegate/nodegate/gate"
)

// severalLabel is on the Nodes that further gates than the default one govern.
const severalLabel = "example.com/several-gates"

// severalGates is a configuration of the default gate and two more.
func severalGates() *gate.Configuration {
	cfg := gate.Default()
	for _, name := range []string{"storage", "mesh"} {
		g := gate.Gate{
			Name: name, Taint: gate.Taint{Key: name + ".example.com/agent-not-ready"},
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{severalLabel: "true"}},
		}
		g.SetDefaults()
		cfg.Gates = append(cfg.Gates, g)
	}
	return cfg
}

// patches counts the writes that pass through it.
type patches struct {
	http.RoundTripper
	sent *atomic.Int32
}

func (p patches) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method == http.MethodPatch {
		p.sent.Add(1)
	}
	return p.RoundTripper.RoundTrip(request)
}

// TestAgent_SeveralGates: whatever changes at once, on whichever gates, is told in
// one write.
func TestAgent_SeveralGates(t *testing.T) {
	w := newWorld(t)
	labels := governedLabels()
	labels[severalLabel] = "true"
	w.create(thisBoot, labels)

	var sent atomic.Int32
	config := rest.CopyConfig(w.identity())
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return patches{rt, &sent} })
	o := w.options(config)
	o.Gates = nil
	cfg := severalGates()
	levers := make([]*lever, len(cfg.Gates))
	for i := range cfg.Gates {
		levers[i] = &lever{}
		serves := probe("serves", levers[i])
		serves.Dwell = 0
		o.Gates = append(o.Gates, Gate{Gate: &cfg.Gates[i], Probes: []Probe{serves}})
	}
	a := w.agent(o)
	clock := testclock.NewFakeClock(time.Now())
	a.clock = clock

	// closed says of which gates the checks fail.
	for _, closed := range []string{"", "agent mesh", "agent storage", "agent mesh storage", ""} {
		for i, l := range levers {
			l.set(!strings.Contains(closed, cfg.Gates[i].Name))
		}
		clock.Step(2 * paceReset)
		w.lookAndAnswer(a)
		before := sent.Load()
		a.step(t.Context())
		if n := sent.Load() - before; n != 1 {
			t.Errorf("closed %q: %d writes", closed, n)
		}
		node := w.node()
		for i := range cfg.Gates {
			g := &cfg.Gates[i]
			want := !strings.Contains(closed, g.Name)
			hb, err := gate.ParseHeartbeat(node.Annotations[g.HeartbeatAnnotation()])
			if err != nil || hb.Ready != want || g.Armed(node) == want {
				t.Errorf("closed %q: gate %s says %q (%v), taints %v", closed, g.Name, node.Annotations[g.HeartbeatAnnotation()], err, node.Spec.Taints)
			}
		}
		if a.step(t.Context()); sent.Load()-before != 1 {
			t.Errorf("closed %q: it is written again", closed)
		}
	}
}
