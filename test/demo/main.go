//go:build unix

// Command demo plays what happens to a node that is gated, on real etcd,
// kube-apiserver, kube-scheduler, kube-controller-manager and kubectl, with the
// real nodegate-controller and nodegate-agent; kubelets are stand-ins. It tells
// what a watch on the Node has shown, asserts each step, and ends with a table of
// the times that were measured. It succeeds only if every step was as it says.
//
// Whatever ends it, it leaves no process and no file: see janitor.go.
//
// Reading order: story.go and steps.go (what is played), narrator.go (how it is
// told).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nodegate/nodegate/test/world"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 128 + int(syscall.SIGINT)
)

func main() {
	if dir, ok := janitorOf(os.Args); ok {
		keepWatch(os.Stdin, dir)
		return
	}
	os.Exit(run())
}

func run() int {
	mutation := flag.String("mutation", string(world.Policy), "what arms in admission: policy or webhook")
	flag.Parse()
	form := world.Mutation(*mutation)
	if flag.NArg() > 0 || form != world.Policy && form != world.Webhook {
		fmt.Fprintf(os.Stderr, "demo: MUTATION is %q, and must be %s or %s\n", *mutation, world.Policy, world.Webhook)
		return exitUsage
	}
	ctrl.SetLogger(logr.Discard()) // envtest's
	// Further signals are swallowed: what is under way then is the clean-up.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := play(ctx, form, newNarrator(os.Stdout))
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted; everything is stopped and removed")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		return exitFailed
	}
	return 0
}

// play makes a world, plays in it and removes it.
func play(ctx context.Context, mutation world.Mutation, tell *narrator) (err error) {
	dir, release, err := hireJanitor()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	programs, err := prepare(ctx, dir, tell)
	if err != nil {
		return err
	}
	w, err := world.Start(ctx, world.Options{Dir: dir, Programs: programs, Mutation: mutation, Progress: tell.progress})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	err = newStory(w, tell).play(ctx)
	if err != nil && ctx.Err() == nil {
		tell.logs(w.Logs())
	}
	return err
}
