// Command nodegate-controller runs the guard and, where a cluster does not use
// the mutation policies, the webhook. Packages guard and webhook do the work;
// here are flags, logging, signals, leader election and the endpoints.
package main

import (
	"context"
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
	err := newCommand(os.Stderr).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func newCommand(logs io.Writer) *cobra.Command {
	o := NewOptions()
	command := &cobra.Command{
		Use:   "nodegate-controller",
		Short: "Arm the Nodes that no write arms, and serve the mutation over HTTPS",
		Long: `Arm the Nodes that no write arms, and serve the mutation over HTTPS.

One replica at a time guards: it adds the taint of a gate to Nodes that are open
against its rules, because the node has rebooted, its agent has fallen silent or
its agent pod is gone. It never removes a taint. Every replica serves the webhook,
if asked to. The mode of the configuration is taken over as soon as it changes.`,
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
	return command
}
