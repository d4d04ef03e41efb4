// Command e2e runs the end-to-end tests: it builds what they need and runs them in
// a sandbox. It is the process 1 of that sandbox, and of the machines in it, too.
// Arguments are for the test program, such as -test.run=TestReboot.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}
