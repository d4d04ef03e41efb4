// Command assets builds the control plane for the tests, unless it is there,
// and prints the folder that holds it; everything else goes to stderr.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nodegate/nodegate/test/controlplane"
)

func main() {
	o := controlplane.Options{
		Given:    os.Getenv(controlplane.GivenVariable),
		Cache:    os.Getenv(controlplane.CacheVariable),
		Log:      os.Stderr,
		Terminal: isTerminal(os.Stderr) && os.Getenv("TERM") != "dumb",
	}
	flag.StringVar(&o.ModuleDir, "C", ".", "folder of the go.mod that pins the versions")
	flag.BoolVar(&o.Kubelet, "kubelet", false, "build the kubelet too")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "assets: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	dir, err := controlplane.Ensure(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "assets:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
