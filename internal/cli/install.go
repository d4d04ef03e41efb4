package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/remnant"
	"github.com/nodegate/nodegate/manifests"
)

// dryRunServer is the one kind of dry run: what a client alone could say, render says.
const dryRunServer = "server"

type installOptions struct {
	*options
	wanted
	mode    string
	dryRun  string
	force   bool
	timeout time.Duration
	// command is install or upgrade, which wants an installation to be there.
	command string
}

const howInstalled = `

What is there is looked at first, and everything is tried by the API server before
anything is changed: your rights, each object, fields that others have set. Then it is
applied in this order: namespace, accounts and rights, configuration, controller and
agents, and what admits last. Each part is waited for, and seen to be active by dry
runs; one of them is a write as the agent. Only then is anything enforced, and not
while there are governed Nodes on which no agent can run. No Node that is open is
closed by this: a gate governs it from its agent's first heartbeat on. Where gates come
and others go, those that go stay until all agents write for those that come. What
another configuration, or another kind of mutation, had in the cluster is removed when
what takes its place is seen to work; what gates have left on Nodes, by prune.

Run again, it changes what is not as it should be, and nothing else: mode, images and
the kind of mutation stay as they are unless others are named.

Exit codes: 0 done, 1 failed, 2 done but not seen to be active everywhere.`

func newInstallCommands(o *options) []*cobra.Command {
	var commands []*cobra.Command
	for _, c := range []struct{ use, short, long, example string }{
		{
			"install", "Install nodegate in the cluster, or bring an installation to what is wanted",
			`Install nodegate in the cluster, or bring an installation to what is wanted.

A cluster that has Nodes already begins in mode observe, in which no Node is changed,
unless --mode says otherwise.` + howInstalled,
			"  kubectl nodegate install --config gates.yaml --image-registry registry.example.com/nodegate --image-tag v0.1.0\n" +
				"  kubectl nodegate install --config gates.yaml --dry-run=server\n" +
				"  kubectl nodegate install --profile cilium --image-registry registry.example.com/nodegate --image-tag v0.1.0",
		},
		{
			"upgrade", "Bring an installation to this version, with its configuration and mode",
			`Bring an installation to this version, with its configuration and mode.

Agents are rolled as their DaemonSet says; a gate that is open stays open meanwhile,
for its heartbeat outlasts the roll.` + howInstalled,
			"  kubectl nodegate upgrade --image-tag v0.2.0",
		},
	} {
		i := &installOptions{options: o, command: c.use}
		command := &cobra.Command{
			Use: c.use, Short: c.short, Long: c.long, Example: c.example, Args: cobra.NoArgs,
			RunE: func(command *cobra.Command, _ []string) error {
				if err := i.validate(); err != nil {
					return err
				}
				return i.run(command.Context())
			},
		}
		i.addFlags(command, " (default: what is installed)", " (default: what is installed, or by the cluster)", " (default: what is installed)")
		flags := command.Flags()
		flags.StringVar(&i.mode, "mode", "", "enforce, observe or paused (default: what is installed, or observe where there are Nodes)")
		flags.StringVar(&i.dryRun, "dry-run", "none", `"server" has the API server try it, prints what would change, and changes nothing; or "none"`)
		flags.BoolVar(&i.force, "force-conflicts", false, "take over fields that others have set otherwise")
		flags.DurationVar(&i.timeout, "timeout", 5*time.Minute, "how long to wait for each part to be active; 0 does not wait")
		commands = append(commands, command)
	}
	return commands
}

func (o *installOptions) validate() error {
	if o.mode != "" && !slices.Contains(gate.Modes(), gate.Mode(o.mode)) {
		return fmt.Errorf("--mode is %q, it must be one of %v", o.mode, gate.Modes())
	}
	if o.dryRun != "none" && o.dryRun != dryRunServer {
		return fmt.Errorf(`--dry-run is %q, it must be "none" or %q; for manifests use render`, o.dryRun, dryRunServer)
	}
	return o.wanted.validate()
}

func (o *installOptions) run(ctx context.Context) error {
	given, err := o.configuration(o.In)
	if err != nil {
		return err
	}
	c, err := o.connect()
	if err != nil {
		return err
	}
	v, err := o.serverVersion()
	if err != nil {
		return err
	}
	if err := o.may(ctx, c, o.command); err != nil {
		return err
	}
	s, err := c.look(ctx)
	if err != nil {
		return err
	}
	if o.command == "upgrade" && s.config == "" && s.fault == nil {
		return fmt.Errorf("%s is not there: nodegate is not installed in this cluster, or not whole; use `kubectl nodegate install --config FILE`", describe(configMap()))
	}
	p, err := decide(s, o.wanted, gate.Mode(o.mode), given, c.clock.Now())
	if err != nil {
		return err
	}
	o.sayPlan(v, p)
	texts, err := steps(s, p)
	if err != nil {
		return err
	}
	objects, err := p.objects(p.mode)
	if err != nil {
		return err
	}
	tried, err := o.try(ctx, c, objects)
	if err != nil {
		return err
	}
	if p.mode == gate.ModeEnforce {
		if err := refuse(ctx, c, p.cfg, s.nodes, tried); err != nil {
			return err
		}
	}
	if o.dryRun == dryRunServer {
		o.show(tried)
		return o.showLeft(ctx, c, p)
	}
	return o.install(ctx, c, s, texts)
}

func (o *installOptions) sayPlan(v *version.Version, p plan) {
	o.sayf("Kubernetes %s, armed by %s, mode %s", v, p.armedBy(), p.mode)
	images := p.options.Images
	o.sayf("Images %s and %s", images.Controller, images.Agent)
	if !strings.Contains(images.Controller+images.Agent, "/") {
		o.sayf("They name no registry, so that each node must have been given them beforehand: --image-registry and --image-tag say where yours are.")
	}
	if p.why != "" {
		o.sayf("%s", p.why)
	}
}

func (p plan) armedBy() string {
	if p.options.Mutation == manifests.ByPolicy {
		return "policies (" + string(p.options.Version) + ")"
	}
	return "webhook"
}

// try has the API server try everything.
func (o *installOptions) try(ctx context.Context, c *connection, objects []*unstructured.Unstructured) ([]applied, error) {
	var tried []applied
	going, faults := c.namespaces(ctx, objects)
	for _, object := range objects {
		if going[object.GetNamespace()] {
			continue
		}
		one, err := c.tryApply(ctx, object, o.force)
		if err != nil {
			faults = append(faults, err)
		}
		tried = append(tried, one)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("nothing was changed:\n%s", bullets(errors.Join(faults...)))
	}
	return tried, nil
}

// namespaces looks for nodegate's and for those that the configuration speaks of,
// which must be there. Nothing can be made in one that is going.
func (c *connection) namespaces(ctx context.Context, objects []*unstructured.Unstructured) (going map[string]bool, faults []error) {
	going = map[string]bool{}
	seen := map[string]bool{"": true}
	for _, object := range objects {
		name := object.GetNamespace()
		if seen[name] {
			continue
		}
		seen[name] = true
		found, err := c.find(ctx, newObject(corev1.SchemeGroupVersion.WithKind("Namespace"), "", name))
		switch {
		case err != nil:
			faults = append(faults, err)
		case found == nil && name != gate.Namespace:
			faults = append(faults, fmt.Errorf("namespace %s does not exist, in which the configuration has agents or a check look for pods: create it first", name))
		case found != nil && found.GetDeletionTimestamp() != nil:
			going[name] = true
			faults = append(faults, fmt.Errorf("namespace %s is being deleted: run this again when it is gone; kubectl get namespace %s -o yaml says what it waits for", name, name))
		}
	}
	return going, faults
}

// show prints what would change.
func (o *installOptions) show(tried []applied) {
	for _, one := range tried {
		how := "server dry run"
		if one.unchecked {
			how = "not tried: what it belongs to is not there yet"
		}
		o.didf("%s %s (%s)", describe(one.after), one.outcome(), how)
		if one.diff() != "" && one.outcome() == "configured" {
			o.didf("%s", lines(strings.TrimRight(one.diff(), "\n")))
		}
		if lost := one.lost(); len(lost) > 0 {
			o.didf("what kubectl has set and the installation has not goes: %s", strings.Join(lost, ", "))
		}
	}
}

// install comes to what is wanted by way of the configurations.
func (o *installOptions) install(ctx context.Context, c *connection, s state, texts []string) error {
	w := &waiting{options: o.options, c: c, timeout: o.timeout}
	var p plan
	for i, text := range texts {
		if i > 0 {
			var err error
			if s, err = c.look(ctx); err != nil {
				return err
			}
		}
		var err error
		if p, err = decide(s, o.wanted, gate.Mode(o.mode), text, c.clock.Now()); err != nil {
			return err
		}
		if i < len(texts)-1 {
			o.sayf("Gates come and go: those that go stay until all agents write for those that come.")
		}
		if err := (&bringing{waiting: w, o: o, s: s, p: p}).run(ctx); err != nil {
			return err
		}
	}
	if err := o.setMode(ctx, c, p.mode); err != nil {
		return err
	}
	w.mode(ctx, p)
	o.sayTraces(s, p)
	if w.unseen {
		return errUnseen
	}
	if o.timeout > 0 {
		o.didf("nodegate is installed and active, in mode %s", p.mode)
	}
	return nil
}

// setMode sets the mode where the apply did not: what another manager has applied, as
// kubectl does server-side, stays where this apply leaves a field out.
func (o *installOptions) setMode(ctx context.Context, c *connection, mode gate.Mode) error {
	found, err := admission(ctx, c)
	if err != nil {
		return err
	}
	for _, object := range found {
		enforced, follows, err := manifests.ModeOf(object)
		if err != nil {
			return explain(err, object)
		}
		if !follows || enforced == (mode == gate.ModeEnforce) {
			continue
		}
		if err := c.setMode(ctx, object, mode); err != nil {
			return err
		}
		o.didf("%s set to mode %s", describe(object), mode)
	}
	return nil
}

// setMode sets the mode in an object as it is by now. Where somebody else writes it
// meanwhile, as the controller its certificate, it does so again.
func (c *connection) setMode(ctx context.Context, object *unstructured.Unstructured, mode gate.Mode) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		before := object.DeepCopy()
		if changed, err := manifests.SetMode(object, mode); err != nil || !changed {
			return err
		}
		return c.Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	return explain(err, object)
}

// sayTraces says that Nodes carry taints of gates that do not govern them.
func (o *installOptions) sayTraces(s state, p plan) {
	known, count := remnant.Known{Config: p.cfg, Retired: p.retired}, 0
	for i := range s.nodes {
		if len(known.On(&s.nodes[i], time.Time{}).Taints) > 0 {
			count++
		}
	}
	if count > 0 {
		o.sayf("%d Nodes carry taints of gates that do not govern them, which nothing removes but `kubectl nodegate prune`.", count)
	}
}

func (o *installOptions) applyOne(ctx context.Context, c *connection, object *unstructured.Unstructured) error {
	done, err := c.apply(ctx, object)
	if err != nil {
		return fmt.Errorf("%w\nWhat came before it is applied; run this again when that is mended", err)
	}
	o.didf("%s %s", describe(object), done.outcome())
	return nil
}
