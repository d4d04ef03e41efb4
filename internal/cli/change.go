package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodegate/nodegate/gate"
)

// A change of the gates takes effect in agents one after the other, and in the guard
// and in admission at once. So that no node is closed meanwhile that serves, and none
// open that does not, gates come before others go: what is between is a configuration
// that has both.

// steps are the configurations through which an installation comes to the one that is
// wanted; the last of them is that.
func steps(s state, p plan) ([]string, error) {
	last := []string{p.options.Config}
	if s.parsed == nil {
		return last, nil
	}
	if names := unanswered(s.parsed, p.cfg, s.nodes); len(names) > 0 {
		return nil, fmt.Errorf("with this configuration nobody answers %[1]s any more, which is chained on %[2]s, and no pod would start there; nothing was changed. "+
			"First switch its check off, by disabled: true beside its pluginType, and then run in the agents of these nodes: /nodegate-agent unchain --plugin-type %[1]s",
			gate.CNIPlugin, few(names))
	}
	if !s.enforcing || p.mode != gate.ModeEnforce {
		return last, nil
	}
	came, went := missing(p.cfg, s.parsed), missing(s.parsed, p.cfg)
	for _, g := range came {
		if other := withTaint(s.parsed, g.Taint.Key); other != nil && other.Name != g.Name {
			return nil, fmt.Errorf("gate %q is to have the taint of gate %q, and while agents are rolled both would act on it; nothing was changed. "+
				"Give it a taint of its own, or change it in the mode observe, in which nothing is closed meanwhile: kubectl nodegate observe, this again, kubectl nodegate resume",
				g.Name, other.Name)
		}
		if !g.Agent.Own() && len(went) > 0 {
			return nil, fmt.Errorf("gate %q comes and gate %q goes, and when the agent of the one writes is not for this program to see; nothing was changed. "+
				"Add the one first, with both in the configuration, and take the other away when its heartbeats are there", g.Name, went[0].Name)
		}
	}
	if len(came) == 0 || len(went) == 0 {
		return last, nil
	}
	both := *p.cfg
	both.Gates = slices.Clone(both.Gates)
	for _, g := range went {
		both.Gates = append(both.Gates, *g)
	}
	text, err := yaml.Marshal(&both)
	if err != nil {
		return nil, fmt.Errorf("writing a configuration with all gates: %w", err)
	}
	if _, err := gate.ParseConfiguration(text); err != nil {
		return nil, fmt.Errorf("gates cannot come and go at the same time, for all of them would be:\n%s", bullets(err))
	}
	return append([]string{string(text)}, last...), nil
}

// missing are the gates of one configuration whose names another does not have.
func missing(of, in *gate.Configuration) []*gate.Gate {
	var gates []*gate.Gate
	for i := range of.Gates {
		if in.Gate(of.Gates[i].Name) == nil {
			gates = append(gates, &of.Gates[i])
		}
	}
	return gates
}

func withTaint(cfg *gate.Configuration, key string) *gate.Gate {
	for i := range cfg.Gates {
		if cfg.Gates[i].Taint.Key == key {
			return &cfg.Gates[i]
		}
	}
	return nil
}

// retire adds to the gates that were configured once those that are not any more, and
// drops those that are again.
func retire(noted []gate.Retired, before, after *gate.Configuration) []gate.Retired {
	var all []gate.Retired
	add := func(r gate.Retired) {
		g := after.Gate(r.Name)
		if (g == nil || g.Taint.Key != r.TaintKey) && !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	for _, r := range noted {
		add(r)
	}
	if before != nil {
		for i := range before.Gates {
			add(gate.Retired{Name: before.Gates[i].Name, TaintKey: before.Gates[i].Taint.Key})
		}
	}
	return all
}

// added is when the gates were added that have come to an installation.
func added(noted map[string]time.Time, before, after *gate.Configuration, now time.Time) map[string]time.Time {
	times := map[string]time.Time{}
	for i := range after.Gates {
		name := after.Gates[i].Name
		if at, ok := noted[name]; ok {
			times[name] = at
		}
		if before != nil && before.Gate(name) == nil {
			times[name] = now
		}
	}
	return times
}

// behind are the Nodes whose agent lives, by one of the heartbeats before, and does not
// write those of all gates after that are its own.
func behind(before, after *gate.Configuration, nodes []corev1.Node, now time.Time) []string {
	var names []string
	for i := range nodes {
		latest, _ := written(before, &nodes[i])
		if _, writes := written(after, &nodes[i]); now.Before(latest) && writes < len(checked(after)) {
			names = append(names, nodes[i].Name)
		}
	}
	return names
}

// written counts the heartbeats of nodegate's own agent on a Node, and says until when
// the latest is good.
func written(cfg *gate.Configuration, node *corev1.Node) (latest time.Time, count int) {
	for _, g := range checked(cfg) {
		hb, err := gate.ParseHeartbeat(node.Annotations[g.HeartbeatAnnotation()])
		if err != nil {
			continue
		}
		count++
		if good := hb.Time.Add(hb.TTL); good.After(latest) {
			latest = good
		}
	}
	return latest, count
}

// checked are the gates that nodegate's own agent runs.
func checked(cfg *gate.Configuration) []*gate.Gate {
	return slices.DeleteFunc(cfg.AgentGates(), func(g *gate.Gate) bool { return len(g.Checks) == 0 })
}

// lingering are the Nodes on which an agent still writes the heartbeat of a gate that
// is not configured: an agent writes all of them at the same time.
func lingering(cfg *gate.Configuration, retired []gate.Retired, nodes []corev1.Node, now time.Time) []string {
	var names []string
	for i := range nodes {
		latest, _ := written(cfg, &nodes[i])
		for _, r := range retired {
			hb, err := gate.ParseHeartbeat(nodes[i].Annotations[gate.HeartbeatPrefix+r.Name])
			good := hb.Time.Add(hb.TTL)
			if err == nil && cfg.Gate(r.Name) == nil && now.Before(good) && !good.Before(latest) {
				names = append(names, nodes[i].Name)
				break
			}
		}
	}
	return names
}

// fleetInterval is how often all Nodes are read while agents are waited for.
const fleetInterval = 2 * time.Second

// fleet waits until no Node is named, and reports whether none was. It looks once
// though nothing is to be waited for.
func (w *waiting) fleet(ctx context.Context, what string, named func([]corev1.Node, time.Time) []string) bool {
	var next time.Time
	var last error
	look := func(ctx context.Context) (bool, error) {
		if time.Now().Before(next) {
			return false, last
		}
		next = time.Now().Add(fleetInterval)
		var s state
		if last = s.readNodes(ctx, w.c); last != nil {
			return false, last
		}
		if names := named(s.nodes, w.c.clock.Now()); len(names) > 0 {
			last = fmt.Errorf("these are not there yet: %s", few(names))
		}
		return last == nil, last
	}
	if done, _ := look(ctx); done {
		return true
	}
	if w.timeout <= 0 {
		w.unseen = true
	}
	return w.wait(ctx, what, look)
}
