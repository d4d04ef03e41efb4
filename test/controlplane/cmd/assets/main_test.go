package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nodegate/nodegate/test/controlplane"
	"github.com/nodegate/nodegate/test/controlplane/internal/fake"
)

const asMain = "NODEGATE_TEST_AS_MAIN"

// TestMain makes the test binary the command when it is run by its own tests.
func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func command(t *testing.T, cache string, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd = exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asMain+"=1", controlplane.CacheVariable+"="+cache, controlplane.GivenVariable+"=")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

func TestMain_PrintsOnlyTheFolder(t *testing.T) {
	cache := t.TempDir()
	cmd, stdout, stderr := command(t, cache)
	cmd.Dir = fake.Module(t)
	if err := cmd.Run(); err != nil {
		t.Fatal(err, stderr)
	}
	dir := strings.TrimSuffix(stdout.String(), "\n")
	if filepath.Dir(dir) != filepath.Join(cache, "controlplane") {
		t.Errorf("stdout: got %q, want only a folder below %s", stdout, cache)
	}
	for _, want := range []string{"building etcd v3.7.3 (1 of 5)\n", "built kubectl v1.37.2 in "} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("stderr lacks %q:\n%s", want, stderr)
		}
	}
}

func TestMain_PrintsTheGivenFolder(t *testing.T) {
	given := t.TempDir()
	for _, name := range []string{"etcd", "kube-apiserver", "kubectl"} {
		fake.Write(t, filepath.Join(given, name), "", 0o755)
	}
	cmd, stdout, stderr := command(t, t.TempDir())
	cmd.Env = append(cmd.Env, controlplane.GivenVariable+"="+given)
	if err := cmd.Run(); err != nil || stdout.String() != given+"\n" || stderr.Len() > 0 {
		t.Errorf("got %v, stdout %q, stderr %q", err, stdout, stderr)
	}
}

func TestMain_FailsWithNothingOnStdout(t *testing.T) {
	cmd, stdout, stderr := command(t, t.TempDir(), "-C", t.TempDir())
	if err := cmd.Run(); err == nil {
		t.Error("no failure")
	}
	if stdout.Len() > 0 || !strings.HasPrefix(stderr.String(), "assets: reading the pins in ") {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
}

// However a build is ended, nothing may look finished, the build must not run
// on, and the next one must find its way.
func TestMain_Interrupted(t *testing.T) {
	tests := map[string]struct {
		signal   syscall.Signal
		compiler bool
		wantLog  string
	}{
		"by ctrl-c": {syscall.SIGINT, true, "interrupted; finished binaries are kept"},
		"politely":  {syscall.SIGTERM, true, "interrupted; finished binaries are kept"},
		// There is no chance to say anything, nor to end more than the go
		// command: a compiler that it had started finishes its package.
		"without notice": {syscall.SIGKILL, false, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			held := fake.NewHeldGo(t)
			if tc.compiler {
				held.StartCompiler(t)
			}
			cache, module := t.TempDir(), fake.Module(t)
			cmd, stdout, stderr := command(t, cache, "-C", module)
			cmd.Env = append(cmd.Env, "PATH="+held.Dir+":"+os.Getenv("PATH"))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			waitForEnd := held.WaitForBuild(t)
			if err := cmd.Process.Signal(tc.signal); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil || stdout.Len() > 0 {
				t.Errorf("exit: %v, stdout %q", err, stdout)
			}
			waitForEnd()
			expectNoBinary(t, cache)
			if !strings.Contains(stderr.String(), tc.wantLog) {
				t.Errorf("stderr lacks %q:\n%s", tc.wantLog, stderr)
			}

			next, _, stderr := command(t, cache, "-C", module)
			if err := next.Run(); err != nil {
				t.Error(err, stderr)
			}
			expectNothingUnfinished(t, cache)
		})
	}
}

func expectNoBinary(t *testing.T, cache string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(cache, "controlplane", "*", "[a-z]*"))
	if err != nil || len(found) > 0 {
		t.Errorf("looks finished: %q %v", found, err)
	}
}

func expectNothingUnfinished(t *testing.T, cache string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(cache, "controlplane", "*", ".*"))
	if err != nil || len(found) > 0 {
		t.Errorf("left over: %q %v", found, err)
	}
}
