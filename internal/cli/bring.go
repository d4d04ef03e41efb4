package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// bringing brings an installation to a plan.
type bringing struct {
	*waiting
	o *installOptions
	s state
	p plan
}

// run applies the plan. What agents' writes are judged by comes before agents that
// write otherwise, and what enforces comes last, when all else is seen to work.
func (b *bringing) run(ctx context.Context) error {
	if err := b.mayGo(ctx); err != nil {
		return err
	}
	mode := b.p.mode
	if mode == gate.ModeEnforce && !b.s.enforcing {
		mode = gate.ModeObserve
	}
	exact, err := b.p.objects(mode)
	if err != nil {
		return err
	}
	first := exact
	settled, err := b.settled(ctx, exact)
	if err != nil {
		return err
	}
	if !settled {
		if first, err = b.p.objects(mode, b.p.retired...); err != nil {
			return err
		}
	}
	if err := b.layers(ctx, first); err != nil {
		return err
	}
	b.writers(ctx, b.p.cfg)
	if err := b.agentsWrite(ctx, b.p.cfg, b.s.nodes); err != nil {
		return fmt.Errorf("the installation is in mode %s: %w", mode, err)
	}
	if mode != b.p.mode {
		b.sayf("Enforcing ...")
		enforcing, err := b.p.objects(b.p.mode)
		if err != nil {
			return err
		}
		if err := b.apply(ctx, enforcing, func(object *unstructured.Unstructured) bool {
			layer := manifests.LayerOf(object)
			return layer == manifests.LayerConfig || layer == manifests.LayerAdmission && (settled || !isWriters(object))
		}); err != nil {
			return err
		}
	}
	if err := b.settle(ctx, settled, exact); err != nil {
		return err
	}
	return b.clear(ctx, exact)
}

// mayGo: a gate goes when the agents that live write for all that stay.
func (b *bringing) mayGo(ctx context.Context) error {
	if b.s.parsed == nil || !b.s.enforcing || b.p.mode != gate.ModeEnforce {
		return nil
	}
	went := missing(b.s.parsed, b.p.cfg)
	if len(went) == 0 || b.fleet(ctx, "all agents to write for the gates that stay", func(nodes []corev1.Node, now time.Time) []string {
		return behind(b.s.parsed, b.p.cfg, nodes, now)
	}) {
		return nil
	}
	b.sayf("Gate %s stays until then; run this again.", went[0].Name)
	return errUnseen
}

// settled reports whether there are the rules that nodegate's agent is to write by, or
// none, so that no agent can be there that writes by others.
func (b *bringing) settled(ctx context.Context, exact []*unstructured.Unstructured) (bool, error) {
	if len(b.p.retired) == 0 {
		return true, nil
	}
	for _, object := range exact {
		if !isWriters(object) || object.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		live, err := b.c.find(ctx, object)
		if err != nil || live == nil {
			return false, err
		}
		fields, err := manifests.Differences(object, live)
		if err != nil || len(fields) > 0 {
			return false, err
		}
	}
	return true, nil
}

func isWriters(object *unstructured.Unstructured) bool {
	return strings.HasPrefix(object.GetName(), "writers.")
}

// settle has the rules let nodegate's agent write for no gate that is not configured,
// once no agent does.
func (b *bringing) settle(ctx context.Context, settled bool, exact []*unstructured.Unstructured) error {
	if settled {
		return nil
	}
	if !b.fleet(ctx, "all agents to write for no gate that is not configured", func(nodes []corev1.Node, now time.Time) []string {
		return lingering(b.p.cfg, b.p.retired, nodes, now)
	}) {
		b.sayf("Until then the rules on who may write what let them; run this again.")
		return nil
	}
	return b.apply(ctx, exact, isWriters)
}

// apply applies those of the objects that are chosen.
func (b *bringing) apply(ctx context.Context, objects []*unstructured.Unstructured, chosen func(*unstructured.Unstructured) bool) error {
	for _, object := range objects {
		if !chosen(object) {
			continue
		}
		if err := b.o.applyOne(ctx, b.c, object); err != nil {
			return err
		}
	}
	return nil
}

// layers applies everything in order.
func (b *bringing) layers(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, layer := range manifests.Layers() {
		if layer == manifests.LayerConfig && b.s.parsed != nil {
			if err := b.before(ctx, objects); err != nil {
				return err
			}
		}
		if err := b.apply(ctx, objects, func(object *unstructured.Unstructured) bool { return manifests.LayerOf(object) == layer }); err != nil {
			return err
		}
		if layer == manifests.LayerAgent {
			b.workloads(ctx, objects)
		}
	}
	return nil
}

// before brings in line what another configuration, or another form of the mutation,
// would be in the way of: the rules on who may write what, and a webhook that is not
// served any more.
func (b *bringing) before(ctx context.Context, objects []*unstructured.Unstructured) error {
	if err := b.apply(ctx, objects, isWriters); err != nil {
		return err
	}
	left, err := policiesOfNone(ctx, b.c, b.p.cfg)
	if err != nil {
		return err
	}
	if err := b.removeAll(ctx, left); err != nil {
		return err
	}
	if b.p.options.Mutation != manifests.ByPolicy {
		return nil
	}
	other, err := b.otherForm(ctx)
	if err != nil || len(other) == 0 {
		return err
	}
	if err := b.apply(ctx, objects, func(object *unstructured.Unstructured) bool {
		return strings.HasPrefix(object.GetKind(), "MutatingAdmissionPolicy")
	}); err != nil {
		return err
	}
	return b.replace(ctx, other)
}

// clear removes what is left of another form of the mutation, and of another
// configuration.
func (b *bringing) clear(ctx context.Context, objects []*unstructured.Unstructured) error {
	other, err := b.otherForm(ctx)
	if err != nil {
		return err
	}
	if len(other) > 0 {
		b.wait(ctx, "the webhook to have its certificate", b.certified)
		if err := b.replace(ctx, other); err != nil {
			return err
		}
	}
	for _, find := range []func() ([]*unstructured.Unstructured, error){
		func() ([]*unstructured.Unstructured, error) { return policiesOfNone(ctx, b.c, b.p.cfg) },
		func() ([]*unstructured.Unstructured, error) { return leftBehind(ctx, b.c, objects) },
		func() ([]*unstructured.Unstructured, error) { return secrets(b.p.options.Mutation) },
	} {
		left, err := find()
		if err != nil {
			return err
		}
		if err := b.removeAll(ctx, left); err != nil {
			return err
		}
	}
	return nil
}

func (b *bringing) removeAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if err := b.remove(ctx, b.c, object); err != nil {
			return err
		}
	}
	return nil
}

// otherForm is what arms besides what is wanted, what makes it do so first.
func (b *bringing) otherForm(ctx context.Context) ([]*unstructured.Unstructured, error) {
	return otherForm(ctx, b.c, b.p.options.Mutation)
}

// certified sees that an API server can call the webhook.
func (b *bringing) certified(ctx context.Context) (bool, error) {
	found, err := installed(ctx, b.c, "MutatingWebhookConfiguration")
	if err != nil {
		return false, err
	}
	for _, object := range found {
		if uncertified, err := manifests.Uncertified(object); err != nil || uncertified {
			return false, errors.Join(err, fmt.Errorf("%s has no caBundle", describe(object)))
		}
	}
	return len(found) > 0, nil
}

// narrowed is how long new Nodes may be seen open before the form of the mutation that
// was there is back.
const narrowed = 10 * time.Second

// replace removes the other form, once the wanted one is seen to arm without it. If it
// is not, all goes on as before.
func (b *bringing) replace(ctx context.Context, other []*unstructured.Unstructured) error {
	if b.s.enforcing && b.p.mode == gate.ModeEnforce && b.timeout > 0 {
		if b.unseen {
			b.sayf("Both forms of the mutation stay until all of the above is seen; run this again.")
			return nil
		}
		seen := (&modeOptions{options: b.options, mode: gate.ModeEnforce, times: 3 * steady}).admissionSeen(b.c, b.p.cfg)
		// What is new is in force by then, though it cannot be told from what was there.
		if !b.wait(ctx, "new Nodes to be closed", seen) {
			return nil
		}
		if err := b.setMode(ctx, other, gate.ModePaused); err != nil {
			return err
		}
		alone := &waiting{options: b.options, c: b.c, timeout: min(b.timeout, narrowed)}
		if !alone.wait(ctx, "new Nodes to be closed by "+b.p.armedBy()+" alone", seen) {
			b.unseen = true
			return b.setMode(context.WithoutCancel(ctx), other, gate.ModeEnforce)
		}
	}
	return b.removeAll(ctx, other)
}

// setMode sets the mode in what arms.
func (b *bringing) setMode(ctx context.Context, objects []*unstructured.Unstructured, mode gate.Mode) error {
	for _, object := range objects {
		if err := b.c.setMode(ctx, object, mode); err != nil {
			return err
		}
	}
	return nil
}
