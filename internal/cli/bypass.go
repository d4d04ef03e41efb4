package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
)

// margin keeps a bypass of full length within reach of the API server, whose clock
// is known to the second.
const margin = 2 * time.Second

type bypassOptions struct {
	*options
	node   string
	gates  []string
	length time.Duration
	reason string
	clear  bool
}

func newBypassCommand(o *options) *cobra.Command {
	b := &bypassOptions{options: o}
	command := &cobra.Command{
		Use:   "bypass NODE (--for DURATION --reason TEXT | --clear)",
		Short: "Open a gate of a node for a while, or end that",
		Long: `Open a gate of a node for a while, or end that.

The gate's taint is removed in the same write, and anybody may remove it until the
time is over. Then the guard closes the gate, unless the node's agent shows that it
serves. This needs the verb bypass on gates.nodegate.io, by the gate's name. With
--clear the gate is closed at once where the agent does not show that it serves, and
the right to write Nodes is enough. Both read the ConfigMap
nodegate-system/nodegate-config, and need the right to get it.

A node whose agent has never written a heartbeat is in the gate's care from its first
bypass on: when that ends, by its time or by --clear, the gate is closed there too.

Where several gates govern the node, say which by --gate; --clear without it ends
all bypasses of the node.`,
		Example: `  kubectl nodegate bypass node-1 --for 1h --reason "the agent's image cannot be pulled"
  kubectl nodegate bypass node-1 --clear`,
		Args:              oneNode,
		ValidArgsFunction: o.completeNode,
		RunE: func(command *cobra.Command, args []string) (err error) {
			if b.node, err = nodeName(args[0]); err != nil {
				return err
			}
			if err := b.chooses(command.Flags().Changed); err != nil {
				return err
			}
			if err := b.validate(); err != nil {
				return err
			}
			return b.run(command.Context())
		},
	}
	command.Flags().DurationVar(&b.length, "for", 0, "how long, at most 24h, in the API server's time")
	command.Flags().StringVar(&b.reason, "reason", "", "why, for whoever finds the node open; printable ASCII")
	command.Flags().StringSliceVar(&b.gates, "gate", nil, "the `gate`; may be repeated")
	_ = command.RegisterFlagCompletionFunc("gate", o.completeGate) // the flag is there
	command.Flags().BoolVar(&b.clear, "clear", false, "end the bypass")
	return command
}

// chooses: a bypass is begun, with a time and a reason, or ended.
func (o *bypassOptions) chooses(given func(flag string) bool) error {
	switch {
	case o.clear && (given("for") || given("reason")):
		return errors.New("--clear ends a bypass: it goes with neither --for nor --reason")
	case o.clear:
		return nil
	case !given("for") && !given("reason"):
		return errors.New("say for how long and why, as in --for 1h --reason TEXT, or --clear to end a bypass")
	case !given("reason"):
		return errors.New("--reason is missing: say why, for whoever finds the node open")
	case !given("for"):
		return errors.New("--for is missing: say for how long, as in --for 1h")
	}
	return nil
}

func (o *bypassOptions) validate() error {
	if o.clear {
		return nil
	}
	if o.length < time.Second || o.length > gate.MaxBypass {
		return fmt.Errorf("--for is %s, it must be from 1s to %s", o.length, gate.MaxBypass)
	}
	if _, err := (gate.Bypass{Until: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), Reason: o.reason}).Format(); err != nil {
		return fmt.Errorf("--reason must be printable ASCII of less than %d bytes: %w", gate.MaxAnnotationBytes-40, err)
	}
	return nil
}

func (o *bypassOptions) run(ctx context.Context) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	cfg, err := c.configuration(ctx)
	if err != nil {
		return err
	}
	for _, name := range o.gates {
		if cfg.Gate(name) == nil && !o.clear {
			return fmt.Errorf("there is no gate %q; there are: %s", name, strings.Join(names(cfg), ", "))
		}
	}
	object := newObject(corev1.SchemeGroupVersion.WithKind("Node"), "", o.node)
	if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return explain(err, object)
	}
	if o.clear {
		return o.end(ctx, c, cfg, object)
	}
	return o.begin(ctx, c, cfg, object)
}

// begin sets the bypass and removes the taint, in one write.
func (o *bypassOptions) begin(ctx context.Context, c *connection, cfg *gate.Configuration, object *unstructured.Unstructured) error {
	gates, err := o.chosen(cfg, object)
	if err != nil {
		return err
	}
	var bypass gate.Bypass
	_, err = c.change(ctx, object, func(object *unstructured.Unstructured) (bool, error) {
		now := c.clock.Now() // the API server has just answered
		until := now.Add(min(o.length, gate.MaxBypass-margin)).UTC().Truncate(time.Second)
		bypass = gate.Bypass{Until: until, Reason: o.reason}
		value, err := bypass.Format()
		if err != nil {
			return false, err
		}
		for _, g := range gates {
			if err := unstructured.SetNestedField(object.Object, value, "metadata", "annotations", g.BypassAnnotation()); err != nil {
				return false, err
			}
			if err := removeTaint(object, g.Taint); err != nil {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	node, err := typed(object)
	if err != nil {
		return err
	}
	for _, g := range gates {
		o.didf("Node %s: gate %s is bypassed until %s", o.node, g.Name, bypass.Until.Format(gate.TimeLayout))
		if g.Armed(node) {
			err = fmt.Errorf("node %s: taint %s is there again: other admission has put it back", o.node, g.Taint.Key)
		}
	}
	return err
}

// end removes the bypass. Admission closes the gate in the same write.
func (o *bypassOptions) end(ctx context.Context, c *connection, cfg *gate.Configuration, object *unstructured.Unstructured) error {
	var cleared []string
	changed, err := c.change(ctx, object, func(object *unstructured.Unstructured) (bool, error) {
		cleared = o.bypassed(object)
		for _, name := range cleared {
			unstructured.RemoveNestedField(object.Object, "metadata", "annotations", gate.BypassPrefix+name)
		}
		return len(cleared) > 0, nil
	})
	if err != nil {
		return err
	}
	if !changed {
		o.sayf("Node %s has no bypass", o.node)
		return nil
	}
	node, err := typed(object)
	if err != nil {
		return err
	}
	for _, name := range cleared {
		state := "open"
		if g := cfg.Gate(name); g == nil {
			state = "not configured any more"
		} else if g.Armed(node) {
			state = "closed"
		}
		o.didf("Node %s: the bypass of gate %s is over, the gate is %s", o.node, name, state)
	}
	return nil
}

// bypassed are the gates whose bypass is to be ended.
func (o *bypassOptions) bypassed(object *unstructured.Unstructured) []string {
	var gates []string
	for _, key := range slices.Sorted(maps.Keys(object.GetAnnotations())) {
		name, ok := strings.CutPrefix(key, gate.BypassPrefix)
		if ok && (len(o.gates) == 0 || slices.Contains(o.gates, name)) {
			gates = append(gates, name)
		}
	}
	return gates
}

// chosen are the gates to bypass: those that were named or, if one alone governs
// the node, that one.
func (o *bypassOptions) chosen(cfg *gate.Configuration, object *unstructured.Unstructured) ([]*gate.Gate, error) {
	node, err := typed(object)
	if err != nil {
		return nil, err
	}
	var governing []*gate.Gate
	var governingNames []string
	for i := range cfg.Gates {
		g := &cfg.Gates[i]
		if g.Governs(node) && (len(o.gates) == 0 || slices.Contains(o.gates, g.Name)) {
			governing = append(governing, g)
			governingNames = append(governingNames, g.Name)
		}
	}
	switch {
	case len(o.gates) == 0 && len(governing) > 1:
		return nil, fmt.Errorf("node %s is governed by several gates, say which by --gate: %s", o.node, strings.Join(governingNames, ", "))
	case len(governing) < max(1, len(o.gates)):
		return nil, fmt.Errorf("node %s is not governed by that gate: there is nothing to bypass", o.node)
	}
	return governing, nil
}

func names(cfg *gate.Configuration) []string {
	var all []string
	for i := range cfg.Gates {
		all = append(all, cfg.Gates[i].Name)
	}
	return all
}

// typed reads of a Node what gates judge by.
func typed(object *unstructured.Unstructured) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, node)
}

// removeTaint leaves every other taint as it is, with fields that this program does
// not know.
func removeTaint(object *unstructured.Unstructured, unwanted gate.Taint) error {
	taints, found, err := unstructured.NestedSlice(object.Object, "spec", "taints")
	if err != nil || !found {
		return err
	}
	taints = slices.DeleteFunc(taints, func(taint any) bool {
		fields, ok := taint.(map[string]any)
		return ok && fields["key"] == unwanted.Key && fields["effect"] == string(unwanted.Effect)
	})
	return unstructured.SetNestedSlice(object.Object, taints, "spec", "taints")
}
