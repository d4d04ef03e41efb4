package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

// unchainedAnnotation notes on the namespace, before the agents go, what they did: with
// them goes all else that tells it, and the uninstallation may be interrupted and run
// again. An installation takes it away, as it is no part of what is applied.
const unchainedAnnotation = gate.Group + "/unchained"

// chained are, by the command that takes a plugin out of a node's lists, the names of
// the nodes on which it was not seen to be done.
type chained map[string][]string

// unchain has the agents take the plugins out, each on its node. Where that cannot be
// or is not seen, a person is told how.
func (r *removal) unchain(ctx context.Context) error {
	known, ending, err := r.noted(ctx)
	if err != nil {
		return err
	}
	cfg := r.cfg
	switch {
	case cfg != nil && r.keep:
		cfg = manifests.OwnPlugin(cfg)
	case cfg == nil && len(known) == 0:
		r.sayf("Whether plugins are chained is not known without the configuration; name it by --config.")
		return nil
	case cfg == nil:
		r.tell(known)
		return nil
	}
	left, commands := r.governed(cfg), unchainCommands(cfg)
	there, err := r.c.find(ctx, agentDaemonSet())
	if err != nil {
		return err
	}
	asked := there != nil && there.GetDeletionTimestamp() == nil && !ending && r.image != "" && len(commands) > 0 && len(left) > 0
	if asked {
		if err := r.unchainByAgents(ctx, cfg, left); err != nil {
			return err
		}
	}
	for _, command := range commands {
		if _, noted := known[command]; asked || !noted {
			known[command] = sortedNames(left)
		}
	}
	if asked {
		if err := r.note(ctx, known); err != nil {
			return err
		}
	}
	if r.keep {
		maps.DeleteFunc(known, func(command string, _ []string) bool { return !slices.Contains(commands, command) })
	}
	r.tell(known)
	return nil
}

// governed are the nodes on which a gate has a plugin chained.
func (r *removal) governed(cfg *gate.Configuration) map[string]bool {
	governed := map[string]bool{}
	for i := range r.nodes {
		if manifests.Unchains(cfg, &r.nodes[i]) {
			governed[r.nodes[i].Name] = true
		}
	}
	return governed
}

func unchainCommands(cfg *gate.Configuration) []string {
	var commands []string
	for _, args := range manifests.UnchainCommands(cfg) {
		commands = append(commands, strings.Join(args, " "))
	}
	return commands
}

// unchainByAgents takes the nodes on which it is done out of those that are left.
func (r *removal) unchainByAgents(ctx context.Context, cfg *gate.Configuration, left map[string]bool) error {
	object, err := manifests.Unchaining(cfg, r.image)
	if err != nil {
		return err
	}
	if _, err := r.c.apply(ctx, object); err != nil {
		return err
	}
	r.wait(ctx, func(ctx context.Context) (bool, error) { return r.unchained(ctx, left) })
	return nil
}

func (r *removal) unchained(ctx context.Context, left map[string]bool) (bool, error) {
	var pods corev1.PodList
	if err := r.c.List(ctx, &pods, client.InNamespace(gate.Namespace), client.MatchingLabels{gate.AgentLabel: gate.AgentLabelValue}); err != nil {
		return false, err
	}
	for i := range pods.Items {
		if manifests.Unchained(&pods.Items[i]) {
			delete(left, pods.Items[i].Spec.NodeName)
		}
	}
	waiting := maps.Clone(left)
	maps.DeleteFunc(waiting, func(name string, _ bool) bool { return r.silent[name] })
	if len(waiting) > 0 {
		return false, fmt.Errorf("plugins are still chained on %s", few(sortedNames(waiting)))
	}
	return true, nil
}

func sortedNames(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// noted reads what an earlier uninstallation has noted, and whether the namespace is
// ending, in which no pod starts.
func (r *removal) noted(ctx context.Context) (known chained, ending bool, err error) {
	known = chained{}
	found, err := r.c.find(ctx, namespace())
	if err != nil || found == nil {
		return known, false, err
	}
	if text := found.GetAnnotations()[unchainedAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &known); err != nil || known == nil {
			r.sayf("Annotation %s of %s says nothing, and is passed over: %q", unchainedAnnotation, describe(found), text)
			known = chained{}
		}
	}
	return known, found.GetDeletionTimestamp() != nil, nil
}

// note writes it. Without it this run does its work all the same.
func (r *removal) note(ctx context.Context, known chained) error {
	text, err := json.Marshal(known)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{unchainedAnnotation: string(text)}}})
	if err != nil {
		return err
	}
	err = r.c.Patch(ctx, namespace(), client.RawPatch(types.MergePatchType, patch))
	if err == nil || passing(err) || ctx.Err() != nil {
		return err
	}
	if !apierrors.IsNotFound(err) {
		r.sayf("Where plugins were taken out could not be noted, for when this is interrupted and run again: %v", err)
	}
	return nil
}

// tell says what to run on the nodes on which no agent has done it.
func (r *removal) tell(known chained) {
	there := map[string]bool{}
	for i := range r.nodes {
		there[r.nodes[i].Name] = true
	}
	for _, command := range slices.Sorted(maps.Keys(known)) {
		for _, name := range known[command] {
			if there[name] {
				r.remains = append(r.remains, fmt.Sprintf("on node %s a plugin may be chained; run there: nodegate-agent %s", name, command))
			}
		}
	}
}
