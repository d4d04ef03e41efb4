package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/placement"
)

// refuse names the governed Nodes on which no agent can run, for nobody could open
// them. Agents are those that are there, and the one that is tried.
func refuse(ctx context.Context, c *connection, cfg *gate.Configuration, nodes []corev1.Node, tried []applied) error {
	var faults []error
	for i := range cfg.Gates {
		g := &cfg.Gates[i]
		var sets appsv1.DaemonSetList
		if err := c.List(ctx, &sets, client.InNamespace(g.Agent.Namespace)); err != nil {
			return fmt.Errorf("listing the DaemonSets of agents: %w", err)
		}
		for _, one := range tried {
			if one.after.GetKind() != "DaemonSet" {
				continue
			}
			var set appsv1.DaemonSet
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(one.after.Object, &set); err != nil {
				return err
			}
			sets.Items = slices.DeleteFunc(sets.Items, func(ds appsv1.DaemonSet) bool { return ds.Namespace == set.Namespace && ds.Name == set.Name })
			sets.Items = append(sets.Items, set)
		}
		if names := unserved(g, nodes, sets.Items); len(names) > 0 {
			faults = append(faults, fmt.Errorf("gate %q governs Nodes on which no agent can run, and which nobody would open: %s; "+
				"narrow its nodeSelector, label them %s=true, or let its agent run there", g.Name, few(names), gate.ExemptLabel))
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("mode enforce is refused, and nothing was changed:\n%s", bullets(errors.Join(faults...)))
	}
	return nil
}

// unserved are the Nodes that the gate governs and none of its agent's DaemonSets
// belongs on.
func unserved(g *gate.Gate, nodes []corev1.Node, sets []appsv1.DaemonSet) []string {
	var names []string
	sets = placement.DaemonSets(g, sets)
	for i := range nodes {
		if g.Governs(&nodes[i]) && !placement.Belongs(sets, &nodes[i], g, false) {
			names = append(names, nodes[i].Name)
		}
	}
	return names
}

// few are the first of many names.
func few(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s, and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
