package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// victimVariable makes the test's program a demo that has started a process and
// hangs.
const victimVariable = "NODEGATE_DEMO_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir, ok := janitorOf(os.Args); ok {
		keepWatch(os.Stdin, dir)
		return
	}
	if os.Getenv(victimVariable) != "" {
		beVictim()
	}
	os.Exit(m.Run())
}

func beVictim() {
	dir, _, err := hireJanitor()
	if err != nil {
		panic(err)
	}
	// A shell that ends at once leaves a process without a parent, in a group of
	// its own.
	shell := exec.Command("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pid, err := shell.Output()
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s %s", dir, pid)
	select {}
}

// TestJanitor: a demo that is killed leaves neither its processes, which are found
// by their environment in /proc, nor its folder.
func TestJanitor(t *testing.T) {
	victim := exec.CommandContext(t.Context(), os.Args[0])
	victim.Env = append(os.Environ(), victimVariable+"=1", "TMPDIR="+t.TempDir())
	output, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	var pid int
	if _, err := fmt.Fscan(bufio.NewReader(output), &dir, &pid); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the process does not run: %v", err)
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait()
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 3*time.Minute, true, func(context.Context) (bool, error) {
		_, gone := os.Stat(dir)
		return errors.Is(gone, os.ErrNotExist), nil
	})
	if err != nil {
		t.Errorf("the folder is still there: %v", err)
	}
	if environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err == nil && len(environment) > 0 {
		t.Error("the process still runs")
	}
}

func TestJanitorOf(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"a demo":           {args: []string{"demo"}},
		"a demo with flag": {args: []string{"demo", "--mutation=webhook"}},
		"a janitor":        {args: []string{"demo", janitorCommand, "/d"}, want: "/d"},
		"without a folder": {args: []string{"demo", janitorCommand}},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := janitorOf(tc.args); got != tc.want || ok != (tc.want != "") {
				t.Errorf("janitorOf(%q) = %q, %t", tc.args, got, ok)
			}
		})
	}
}
