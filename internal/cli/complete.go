package cli

import (
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// completeNode completes the name of one node. Of Nodes it reads the metadata.
func (o *options) completeNode(command *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := o.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(nodeKind)
	var names []cobra.Completion
	err = eachOf(command.Context(), c.Client, list, client.ListOptions{}, func(object runtime.Object) {
		if node, ok := object.(*metav1.PartialObjectMetadata); ok && strings.HasPrefix(node.Name, begun) {
			names = append(names, node.Name)
		}
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeGate completes the name of a gate.
func (o *options) completeGate(command *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := o.connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	cfg, err := c.configuration(command.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return names(cfg), cobra.ShellCompDirectiveNoFileComp
}
