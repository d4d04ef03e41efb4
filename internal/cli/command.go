package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

//go:generate go test -run TestHelp . -update

// Exit codes.
const (
	codeDone   = 0
	codeFailed = 1
	// codeUnseen: all is changed, but not all of it was seen to be in effect.
	codeUnseen = 2
)

// errUnseen is returned where everything is changed, and said what was not seen.
var errUnseen = errors.New("changed, but not seen to be in effect everywhere: run it again when what is named above is mended")

// errInterrupted is of a command that a signal has ended.
var errInterrupted = errors.New("interrupted: what is said above to be done is done; run it again for the rest")

// Run runs the command line and returns the exit code.
func Run(ctx context.Context, streams genericiooptions.IOStreams, args []string) int {
	command := NewCommand(streams)
	command.SetArgs(args)
	err := command.ExecuteContext(ctx)
	if code, ok := errors.AsType[outcome](err); ok {
		return int(code)
	}
	switch {
	case err == nil:
		return codeDone
	case ctx.Err() != nil:
		err = errInterrupted
	case errors.Is(err, errUnseen):
		fmt.Fprintln(streams.ErrOut, "Warning:", printableLines(err.Error()))
		return codeUnseen
	}
	if _, unanswered := errors.AsType[*url.Error](err); unanswered {
		err = fmt.Errorf("the API server that the kubeconfig names cannot be asked: %w", err)
	}
	fmt.Fprintln(streams.ErrOut, "Error:", printableLines(err.Error()))
	return codeFailed
}

// NewCommand returns `kubectl nodegate`.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	flags.Namespace = nil // nodegate's is fixed
	o := &options{IOStreams: streams, flags: flags}
	command := &cobra.Command{
		Use:   "kubectl-nodegate COMMAND",
		Short: "Look after the gates of a cluster's nodes",
		Long: `Look after the gates of a cluster's nodes.

Exit codes: 0 done, 1 failed, 2 done, but not all of it could be seen. status and
heartbeat have others besides, for scripts.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nodegate"},
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.SetOut(streams.Out)
	command.SetErr(streams.ErrOut)
	command.CompletionOptions.DisableDefaultCmd = true
	command.SuggestionsMinimumDistance = 2
	command.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, command.CommandPath())
	})
	flags.AddFlags(command.PersistentFlags())
	command.PersistentFlags().Lookup("cache-dir").DefValue = "" // it is in the caller's home
	command.AddCommand(newStatusCommand(o), newExplainCommand(o), newHeartbeatCommand(o), newConfigCommand(o), newVersionCommand(o))
	command.AddCommand(newModeCommands(o)...)
	command.AddCommand(newBypassCommand(o))
	command.AddCommand(newInstallCommands(o)...)
	command.AddCommand(newPruneCommand(o), newUninstallCommand(o))
	command.AddCommand(newRenderCommand(o))
	return command
}

// noArgs names the command that may have been meant.
func noArgs(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	meant := ""
	if like := command.SuggestionsFor(args[0]); len(like) > 0 {
		meant = ", is it " + strings.Join(like, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q%s; see %s --help", args[0], meant, command.CommandPath())
}

// oneNode is for commands that are about one.
func oneNode(command *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("name one node, not %d: kubectl nodegate %s", len(args), command.Use)
	}
	return nil
}

// options are what every command has.
type options struct {
	genericiooptions.IOStreams
	flags *genericclioptions.ConfigFlags
}

// sayf tells a person something that is no result.
func (o *options) sayf(format string, args ...any) { writef(o.ErrOut, format, args) }

// didf writes a result.
func (o *options) didf(format string, args ...any) { writef(o.Out, format, args) }

// nodeName is the name that an argument has, as it is or as kubectl writes it.
func nodeName(arg string) (string, error) {
	name := strings.TrimPrefix(strings.TrimPrefix(arg, "node/"), "nodes/")
	if name == "" {
		return "", errors.New("the name of the node is empty")
	}
	return name, nil
}
