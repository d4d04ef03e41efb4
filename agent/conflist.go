package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/conflist"
)

// ConflistCheck passes while the plugin is chained in the CNI configuration that
// the node's runtime loads, exactly once and behind the main plugin, and its
// binary is in place. Which file that is depends on the runtime, which the Node
// names unless the check does; with one whose rules are not known nothing is
// chained.
//
// Where another writer takes the plugin out of a list, the check puts it back. It
// fails while the plugin is not there, and while that happens again and again.
//
// What is not given has the defaults that [gate.ConflistCheck] names.
func ConflistCheck(c gate.ConflistCheck) Check { return newConflistCheck(c) }

type conflistCheck struct {
	runtime, plugin string
	disabled        func() bool
	keeper          *conflist.Keeper
	// blind is why the directory cannot be seen before another start.
	blind atomic.Pointer[error]
}

func newConflistCheck(c gate.ConflistCheck) *conflistCheck {
	c.SetDefaults() // on a copy
	check := &conflistCheck{runtime: c.Runtime, plugin: c.PluginType, disabled: func() bool { return c.Disabled }}
	o := conflist.Options{Dir: c.Dir, Plugin: c.PluginType, Network: c.Network, BinDir: c.BinDir, First: c.PluginType == gate.CNIPlugin}
	check.keeper = conflist.NewKeeper(o, c.EntryFile, func() bool { return check.disabled() })
	return check
}

// Check implements [Check].
func (c *conflistCheck) Check(_ context.Context, node *corev1.Node) error {
	reason := c.look(node)
	if errors.Is(reason, conflist.ErrRemoved) {
		c.blind.Store(&reason)
	} else {
		c.blind.Store(nil)
	}
	return reason
}

// missed implements [missing]: a runtime goes through the list that it had loaded
// when it began.
func (c *conflistCheck) missed(began time.Time) (again bool, reason error) {
	if c.plugin == gate.CNIPlugin {
		return false, nil // it is the one that asks
	}
	span := c.keeper.Span()
	switch {
	case !span.Runs:
		return false, fmt.Errorf("plugin %q is not chained", c.plugin)
	case began.Before(span.Since):
		return true, fmt.Errorf("plugin %q was chained after this attempt to start the pod had begun", c.plugin)
	}
	return false, nil
}

func (c *conflistCheck) restartFor() error {
	if reason := c.blind.Load(); reason != nil {
		return *reason
	}
	return nil
}

func (c *conflistCheck) look(node *corev1.Node) error {
	if c.disabled() {
		return c.keeper.Look(conflist.Runtime{}) // which takes note
	}
	text := c.runtime
	if node != nil {
		text = cmp.Or(text, node.Status.NodeInfo.ContainerRuntimeVersion)
	}
	runtime, err := conflist.ParseRuntime(text)
	switch {
	case err == nil:
		return c.keeper.Look(runtime)
	case node == nil:
		return ErrNoNode
	}
	return err
}

func (c *conflistCheck) notice(log *slog.Logger, events *prometheus.CounterVec, again func()) {
	host := conflist.Host{Log: log, Changed: again, Count: func(conflist.Event) {}}
	if events != nil {
		for _, event := range conflist.Events() {
			events.WithLabelValues(string(event))
		}
		host.Count = func(event conflist.Event) { events.WithLabelValues(string(event)).Inc() }
	}
	c.keeper.Attach(host)
}

func (c *conflistCheck) follow(ctx context.Context) { c.keeper.Watch(ctx) }

// FollowSwitches makes the conflist checks of the gates obey the field disabled of
// the configuration that current returns, rather than that of their start. It is
// to be called before the agent is created.
func FollowSwitches(gates []Gate, current func() *gate.Configuration) {
	for _, g := range gates {
		for _, p := range g.Probes {
			if check, ok := p.Check.(*conflistCheck); ok {
				was := check.disabled
				check.disabled = func() bool {
					if c := configured(current(), g.Name, p.Name); c != nil {
						return c.Disabled
					}
					return was()
				}
			}
		}
	}
}

// configured is a conflist check of a configuration; nil if there is none.
func configured(cfg *gate.Configuration, gateName, check string) *gate.ConflistCheck {
	i := slices.IndexFunc(cfg.Gates, func(g gate.Gate) bool { return g.Name == gateName })
	if i < 0 {
		return nil
	}
	checks := cfg.Gates[i].Checks
	if i = slices.IndexFunc(checks, func(c gate.Check) bool { return c.Name == check }); i < 0 {
		return nil
	}
	return checks[i].Conflist
}
