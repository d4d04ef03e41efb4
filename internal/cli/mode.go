package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// modeOptions are those of the commands that set the mode.
type modeOptions struct {
	*options
	command string
	mode    gate.Mode
	timeout time.Duration
	// times is how often in a row admission must be seen in the mode, if not steady.
	times int
}

func newModeCommands(o *options) []*cobra.Command {
	const after = `

The mode stands in the ConfigMap nodegate-system/nodegate-config and in what admits,
and is set in both with your rights; no comment and no other setting is touched.
Heartbeats, opening, and the rules on who may write what stay on. The command
returns when a dry run shows the mode at the API server, and the guard says that it
is in it, which takes until the kubelet has brought its configuration up to date.`
	var commands []*cobra.Command
	for _, c := range []struct {
		mode             gate.Mode
		use, short, long string
	}{
		{gate.ModePaused, "pause", "Arm no Node and count nothing, until resumed", "Arm no Node and count nothing, until resumed. Nodes that are closed stay so until their agent opens them."},
		{gate.ModeObserve, "observe", "Arm no Node, but count what would have been armed", "Arm no Node, but count what would have been armed, in the metric\nnodegate_guard_would_arm_total."},
		{gate.ModeEnforce, "resume", "Enforce the gates (again)", "Enforce the gates (again). New Nodes are closed until their agent shows that it serves,\nand stay so where no agent runs; others are closed where it does not."},
	} {
		m := &modeOptions{options: o, command: c.use, mode: c.mode}
		command := &cobra.Command{
			Use: c.use, Short: c.short, Long: c.long + after, Args: cobra.NoArgs,
			RunE: func(command *cobra.Command, _ []string) error { return m.run(command.Context()) },
		}
		command.Flags().DurationVar(&m.timeout, "timeout", 2*time.Minute, "how long to wait for the mode to be in effect; 0 does not wait")
		commands = append(commands, command)
	}
	return commands
}

func (o *modeOptions) run(ctx context.Context) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	if err := o.may(ctx, c, o.command); err != nil {
		return err
	}
	cfg, err := o.setConfiguration(ctx, c)
	if err != nil {
		return err
	}
	form, err := o.setAdmission(ctx, c)
	if err != nil {
		return fmt.Errorf("the mode is %s in the configuration, but not in all that admits; run this again: %w", o.mode, err)
	}
	whole, err := o.wholeAdmission(ctx, c, cfg, form)
	if err != nil {
		return err
	}
	if o.timeout > 0 {
		err = o.await(ctx, c, cfg, form)
	}
	if err != nil {
		return err
	}
	if !whole {
		return errUnseen
	}
	if o.timeout > 0 {
		o.didf("mode %s is in effect", o.mode)
	}
	return nil
}

// wholeAdmission reports whether every gate has all that enforces it, where this is
// asked for, and names what is not there: as long as no Node is adopted, no dry run
// shows what becomes of an UPDATE.
func (o *modeOptions) wholeAdmission(ctx context.Context, c *connection, cfg *gate.Configuration, found form) (bool, error) {
	whole := true
	if o.mode != gate.ModeEnforce || found.webhook {
		return whole, nil
	}
	for i := range cfg.Gates {
		for _, name := range manifests.MutationNames(&cfg.Gates[i]) {
			for _, kind := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
				object := newObject(found.policies.WithKind(kind), "", name)
				err := c.Get(ctx, client.ObjectKeyFromObject(object), object)
				if client.IgnoreNotFound(err) != nil {
					return false, explain(err, object)
				}
				if err != nil {
					o.sayf("%s is not there, without which gate %q is not enforced: apply the manifests again", describe(object), cfg.Gates[i].Name)
					whole = false
				}
			}
		}
	}
	return whole, nil
}

// setConfiguration sets the mode in the ConfigMap and returns the configuration.
func (o *modeOptions) setConfiguration(ctx context.Context, c *connection) (*gate.Configuration, error) {
	object, text := configMap(), ""
	changed, err := c.change(ctx, object, func(object *unstructured.Unstructured) (bool, error) {
		before, err := configText(object)
		if err != nil {
			return false, err
		}
		if text, err = setMode(before, o.mode); err != nil {
			return false, fmt.Errorf("key %s is left as it is, set the mode there by hand: %w", gate.ConfigMapKey, err)
		}
		return text != before, unstructured.SetNestedField(object.Object, text, "data", gate.ConfigMapKey)
	})
	if apierrors.IsNotFound(err) {
		return nil, c.unconfigured(ctx, errors.Unwrap(err))
	}
	if err != nil {
		return nil, err
	}
	o.report(object, changed)
	return gate.ParseConfiguration([]byte(text))
}

func (o *modeOptions) report(object *unstructured.Unstructured, changed bool) {
	did := "is in mode " + string(o.mode) + " already"
	if changed {
		did = "set to mode " + string(o.mode)
	}
	o.didf("%s %s", describe(object), did)
}

// form is how admission arms in the cluster.
type form struct {
	// policies is their version, empty if there are none.
	policies schema.GroupVersion
	webhook  bool
}

// setAdmission sets the mode in all that admits. What judges an UPDATE comes before
// what judges a CREATE: an API server that is seen to do the latter by the new mode
// does the former.
func (o *modeOptions) setAdmission(ctx context.Context, c *connection) (form, error) {
	var found form
	objects, err := admission(ctx, c)
	if err != nil {
		return found, err
	}
	for _, object := range objects {
		_, follows, err := manifests.ModeOf(object)
		if err != nil {
			return found, explain(err, object)
		}
		if !follows {
			continue
		}
		if object.GetKind() == "MutatingAdmissionPolicyBinding" {
			found.policies = object.GroupVersionKind().GroupVersion()
		}
		found.webhook = found.webhook || object.GetKind() == "MutatingWebhookConfiguration"
		changed, err := c.change(ctx, object, func(object *unstructured.Unstructured) (bool, error) {
			return manifests.SetMode(object, o.mode)
		})
		if err != nil {
			return found, err
		}
		o.report(object, changed)
	}
	if found.policies.Empty() && !found.webhook {
		return found, errors.New("there is neither a binding of a mutation policy nor a webhook of nodegate: is it installed in this cluster?")
	}
	return found, nil
}

// admission lists the bindings and registrations that nodegate has, of which some follow
// the mode.
func admission(ctx context.Context, c *connection) ([]*unstructured.Unstructured, error) {
	found, err := installed(ctx, c, "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration")
	if err != nil {
		return nil, err
	}
	createLast(found)
	return found, nil
}

// createLast puts what judges a CREATE of a Node behind everything else.
func createLast(objects []*unstructured.Unstructured) {
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		last := func(object *unstructured.Unstructured) int {
			if strings.HasPrefix(object.GetName(), "create.") {
				return 1
			}
			return 0
		}
		return cmp.Compare(last(a), last(b))
	})
}
