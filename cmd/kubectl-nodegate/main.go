// Command kubectl-nodegate is `kubectl nodegate`, by which people look after the
// gates. Package cli does the work.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodegate/nodegate/internal/cli"
)

func main() {
	klog.SetLogger(logr.Discard()) // what goes wrong is in the error
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends what does not heed the first
	code := cli.Run(ctx, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}, arguments(os.Args))
	stop()
	os.Exit(code)
}

// arguments are those of a command line. kubectl completes a plugin's by a program
// named kubectl_complete-<plugin>, which may be a link to this one.
func arguments(line []string) []string {
	name := strings.TrimSuffix(filepath.Base(line[0]), ".exe")
	if name == "kubectl_complete-nodegate" {
		return append([]string{cobra.ShellCompRequestCmd}, line[1:]...)
	}
	return line[1:]
}
