package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/manifests"
)

func newConfigCommand(o *options) *cobra.Command {
	command := &cobra.Command{
		Use:   "config COMMAND",
		Short: "Look at the configuration",
		Args:  cobra.NoArgs,
		RunE:  func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(newValidateCommand(o))
	return command
}

func newValidateCommand(o *options) *cobra.Command {
	w := &wanted{}
	command := &cobra.Command{
		Use:   "validate [FILE | -]",
		Short: "Say whether a configuration is valid, and what is wrong with it",
		Long: `Say whether a configuration is valid, and what is wrong with it: in a file, on stdin
(-), a ready one (--profile), or the one that is installed in the cluster, in the
ConfigMap nodegate-system/nodegate-config. Of the others no cluster is asked.

Exit codes: 0 it is valid, 1 it is not, or could not be read.`,
		Example: `  kubectl nodegate config validate config.yaml
  kubectl nodegate config validate`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return o.validateConfig(command.Context(), args, w.profile)
		},
	}
	w.addProfile(command)
	return command
}

func (o *options) validateConfig(ctx context.Context, args []string, profile string) error {
	name, text, err := o.textOf(ctx, args, profile)
	if err != nil {
		return err
	}
	cfg, err := gate.ParseConfiguration(text)
	if err != nil {
		return fmt.Errorf("%s is not valid:\n%s", name, bullets(err))
	}
	o.didf("%s is valid: mode %s, gates %s", name, cfg.Mode, strings.Join(names(cfg), ", "))
	return nil
}

// textOf reads a configuration, and says where it is from.
func (o *options) textOf(ctx context.Context, args []string, profile string) (name string, text []byte, err error) {
	switch {
	case len(args) > 0 && profile != "":
		return "", nil, errTwoConfigurations
	case profile != "":
		ready, err := manifests.Profile(profile)
		return "profile " + profile, []byte(ready), err
	case len(args) == 0:
		c, err := o.connect()
		if err != nil {
			return "", nil, err
		}
		object := configMap()
		if err := c.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return "", nil, explain(err, object)
		}
		installed, err := configText(object)
		return describe(object), []byte(installed), explain(err, object)
	}
	name = args[0]
	text, err = configurationAt(name, o.In)
	if name == "-" {
		name = "the configuration"
	}
	return name, text, err
}

// bullets are the faults that an error joins, a line for each.
func bullets(err error) string {
	all := []error{err}
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		all = joined.Unwrap()
	}
	lines := make([]string, len(all))
	for i, fault := range all {
		lines[i] = "- " + fault.Error()
	}
	return strings.Join(lines, "\n")
}
