package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/remnant"
	"github.com/nodegate/nodegate/manifests"
)

const (
	dryRunClient = "client"
	// goneWithin is how long an API server may go on by a policy that was deleted.
	goneWithin = 15 * time.Second
)

type pruneOptions struct {
	*options
	wanted
	dryRun string
}

func newPruneCommand(o *options) *cobra.Command {
	p := &pruneOptions{options: o}
	command := &cobra.Command{
		Use:   "prune",
		Short: "Remove what gates have left that are not configured any more, or do not govern a node any more",
		Long: `Remove what gates have left that are not configured any more, or do not govern a node
any more: in admission the policies of gates that are not configured, and from Nodes
the taints, heartbeats and bypasses of gates that do not govern them. What a gate
governs is not touched, nor is anything else of a Node.

Taints are known by their key: of the gates that are configured; of those that were,
as install and upgrade have noted, as policies tell that are still there, or as
--old-config has it; and all keys that begin with nodegate.io/. A heartbeat that an
agent still writes, for it has another gate on the node, stays.`,
		Example: `  kubectl nodegate prune --dry-run=server
  kubectl nodegate prune`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"none", dryRunClient, dryRunServer}, p.dryRun) {
				return fmt.Errorf(`--dry-run is %q, it must be "none", %q or %q`, p.dryRun, dryRunClient, dryRunServer)
			}
			return p.run(command.Context())
		},
	}
	flags := command.Flags()
	flags.StringVar(&p.config, "old-config", "", "`file` with a former configuration, of whose gates nothing else tells; - for standard input")
	flags.StringVar(&p.dryRun, "dry-run", "none", `"client" prints what would be removed, "server" has the API server try it; or "none"`)
	return command
}

// pruning is what is removed, and by which right.
type pruning struct {
	*pruneOptions
	c     *connection
	known remnant.Known
	mu    sync.Mutex // of what is said
}

func (o *pruneOptions) run(ctx context.Context) error {
	old, err := o.configuration(o.In)
	if err != nil {
		return err
	}
	c, err := o.connect()
	if err != nil {
		return err
	}
	if err := o.may(ctx, c, "prune"); err != nil {
		return err
	}
	p := &pruning{pruneOptions: o, c: c}
	left, err := p.look(ctx, old)
	if err != nil {
		return err
	}
	if o.dryRun == dryRunServer {
		c.Client = client.NewDryRunClient(c.Client)
	}
	removed, err := p.admission(ctx, left)
	if err != nil {
		return err
	}
	cleaned, err := p.nodes(ctx)
	if err != nil {
		return fmt.Errorf("%w\nWhat was removed stays removed; run this again when that is mended", err)
	}
	if removed+cleaned == 0 {
		o.sayf("Nothing is left of gates that are not configured, or do not govern a node.")
	}
	if o.dryRun != "none" {
		return nil
	}
	return p.forget(ctx)
}

// look finds out which gates there are and were, and which policies are of none.
func (p *pruning) look(ctx context.Context, old string) ([]*unstructured.Unstructured, error) {
	object := configMap()
	if err := p.c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return nil, explain(err, object)
	}
	_, cfg, err := parsed(object)
	if err != nil {
		return nil, err
	}
	p.known = remnant.Known{Config: cfg, Retired: gate.ParseRetired(object.GetAnnotations()[gate.RetiredAnnotation])}
	if old != "" {
		was, err := gate.ParseConfiguration([]byte(old))
		if err != nil {
			return nil, err
		}
		for i := range was.Gates {
			p.known.Retired = append(p.known.Retired, gate.Retired{Name: was.Gates[i].Name, TaintKey: was.Gates[i].Taint.Key})
		}
	}
	left, err := policiesOfNone(ctx, p.c, cfg)
	for _, object := range left {
		if name, key := manifests.GateOf(object); key != "" {
			p.known.Retired = append(p.known.Retired, gate.Retired{Name: name, TaintKey: key})
		}
	}
	return left, err
}

// policiesOfNone are nodegate's policies and bindings that belong to no gate that is
// configured; what arms comes first, and bindings before what they bind.
func policiesOfNone(ctx context.Context, c *connection, cfg *gate.Configuration) ([]*unstructured.Unstructured, error) {
	found, err := installed(ctx, c, "MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy")
	return slices.DeleteFunc(found, func(object *unstructured.Unstructured) bool {
		name, _ := manifests.GateOf(object)
		return name == "" || cfg.Gate(name) != nil
	}), err
}

// admission removes policies, which would put taints back.
func (p *pruning) admission(ctx context.Context, left []*unstructured.Unstructured) (int, error) {
	for _, object := range left {
		if p.dryRun != dryRunClient {
			err := p.c.Delete(ctx, object)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return 0, explain(err, object)
			}
		}
		p.tell(describe(object))
	}
	return len(left), nil
}

// tell writes what was removed of what, or would be.
func (p *pruning) tell(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.didf("%s removed%s", what, map[string]string{dryRunClient: " (dry run)", dryRunServer: " (server dry run)"}[p.dryRun])
}

// nodes cleans all Nodes, some at the same time, and returns how many had to be.
func (p *pruning) nodes(ctx context.Context) (int, error) {
	var s state
	if err := s.readNodes(ctx, p.c); err != nil {
		return 0, err
	}
	var group errgroup.Group // one that fails keeps no other from being cleaned
	group.SetLimit(cleaners)
	count := 0
	for i := range s.nodes {
		found := p.known.On(&s.nodes[i], p.c.clock.Now())
		if found.None() {
			continue
		}
		count++
		name := s.nodes[i].Name
		if p.dryRun == dryRunClient {
			p.tell("Node " + name + ": " + listed(found))
			continue
		}
		group.Go(func() error { return p.node(ctx, name) })
	}
	return count, group.Wait()
}

// node cleans one, again where a policy that was deleted is still in force. One that
// has gone is clean.
func (p *pruning) node(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	var removed remnant.Remnants
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		found, object, err := p.c.cleanNode(ctx, name, p.known)
		if removed.None() {
			removed = found
		}
		switch {
		case apierrors.IsNotFound(err), err == nil && (found.None() || p.dryRun == dryRunServer):
			return true, nil
		case err != nil && !passing(err):
			return false, unseeable{err}
		case err != nil:
			return false, err
		}
		node, err := typed(object)
		if found := p.known.On(node, p.c.clock.Now()); err == nil && !found.None() {
			return false, fmt.Errorf("node %s: admission puts back %s", name, listed(found))
		}
		return true, err
	})
	if err == nil && !removed.None() {
		p.tell("Node " + name + ": " + listed(removed))
	}
	return err
}

// listed names what is removed of a Node.
func listed(found remnant.Remnants) string {
	var parts []string
	for _, taint := range found.Taints {
		parts = append(parts, "taint "+taint.Key+":"+string(corev1.TaintEffectNoSchedule))
	}
	for _, name := range found.Heartbeats {
		parts = append(parts, "heartbeat of gate "+name)
	}
	for _, name := range found.Bypasses {
		parts = append(parts, "bypass of gate "+name)
	}
	return strings.Join(parts, ", ")
}

// forget drops the note of gates that were configured once: from now on, a taint of
// theirs is somebody else's.
func (p *pruning) forget(ctx context.Context) error {
	_, err := p.c.change(ctx, configMap(), func(object *unstructured.Unstructured) (bool, error) {
		_, noted := object.GetAnnotations()[gate.RetiredAnnotation]
		unstructured.RemoveNestedField(object.Object, "metadata", "annotations", gate.RetiredAnnotation)
		return noted, nil
	})
	return err
}
