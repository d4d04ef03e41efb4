// Command nodegate-agent runs on every node: it tests whether the node serves,
// writes the heartbeat of its gates and opens them. Package agent does the work;
// here are flags, logging, signals and the endpoints.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nodegate/nodegate/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newCommand(os.Getenv, os.Stderr).ExecuteContext(ctx)
	stop()
	switch {
	case errors.Is(err, errNotChained):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func newCommand(getenv func(string) string, logs io.Writer) *cobra.Command {
	o := NewOptions(getenv)
	command := &cobra.Command{
		Use:   "nodegate-agent",
		Short: "Test whether this node serves, say so in its heartbeat, and open its gates",
		Long: `Test whether this node serves, say so in its heartbeat, and open its gates.

The agent runs the gates of the configuration that have checks and belong to the
account nodegate-system/nodegate-agent. It reads and writes its own Node only, and
never adds a taint. When it is stopped it writes nothing: its heartbeat expires.`,
		Version:       version.String(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			return o.Run(command.Context(), logs)
		},
	}
	o.AddFlags(command.Flags())
	command.CompletionOptions.DisableDefaultCmd = true
	command.AddCommand(newConflistCommand(), newChainCommand(), newUnchainCommand(), newInstallCNICommand())
	return command
}
