//go:build unix

package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nodegate/nodegate/test/cluster"
)

// endTimeout is how long a program may take to end after it was asked to.
const endTimeout = 10 * time.Second

// program is a running program that leads a process group of its own: a Ctrl-C in
// the terminal is for us, and whatever the program starts ends with it.
type program struct {
	log   *os.File
	ended chan struct{}

	mu  sync.Mutex
	cmd *exec.Cmd
	// asked: whoever ends it now wants it to end.
	asked bool
}

// start runs a program, whose output goes to log/<name>.log.
func (w *World) start(name, path string, args ...string) (*program, error) {
	log, err := os.OpenFile(filepath.Join(w.options.Dir, logFolder, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening log of %s: %w", name, err)
	}
	p := &program{log: log, ended: make(chan struct{})}
	if err := p.run(path, args); err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", name, err), log.Close())
	}
	go func() {
		defer close(p.ended)
		defer log.Close() //nolint:errcheck // only what was written counts
		for {
			_ = p.cmd.Wait() // how it ended is in its log
			if !p.lostLease() || p.run(path, args) != nil {
				return
			}
		}
	}()
	return p, nil
}

func (p *program) run(path string, args []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked {
		return errors.New("it was asked to end")
	}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = ownGroup()
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd = cmd
	return nil
}

// lostLease reports whether the program ended because it could not renew its Lease
// in time, as happens where the machine stalls. Its kubelet would start it again.
func (p *program) lostLease() bool {
	said, err := os.ReadFile(p.log.Name())
	return err == nil && strings.HasSuffix(strings.TrimSpace(string(said)), "leader election lost")
}

// await waits for a condition, and not beyond the program's end, of which it
// returns the log's last lines.
func (p *program) await(ctx context.Context, condition func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := cluster.Await(ctx, condition)
	select {
	case <-p.ended:
		said, readErr := os.ReadFile(p.log.Name())
		return errors.Join(fmt.Errorf("it has ended; its last words:\n%s", tail(string(said))), readErr)
	default:
		return err
	}
}

// stop asks the program to end, and kills it if it does not. A program that does
// not run is stopped already.
func (p *program) stop() {
	if p == nil {
		return
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(endTimeout):
	}
	p.kill()
}

// kill ends the program with all that it started, unasked.
func (p *program) kill() {
	if p == nil {
		return
	}
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// signal reaches the program's group; one that has ended is no mistake.
func (p *program) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
	_ = syscall.Kill(-p.cmd.Process.Pid, s)
}

// Build builds nodegate's own programs into a folder.
func Build(ctx context.Context, dir string) error {
	const module = "github.com/nodegate/nodegate"
	_, err := output(ctx, "go", "build", "-o", dir+string(filepath.Separator),
		module+"/cmd/nodegate-agent", module+"/cmd/nodegate-controller")
	return err
}

// Command is a command that, when the context ends, is interrupted as by Ctrl-C,
// with all that it started.
func Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = ownGroup()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = endTimeout
	return cmd
}

// output runs a command to its end and returns all that it said.
func output(ctx context.Context, name string, args ...string) (string, error) {
	said, err := Command(ctx, name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("running %s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, tail(string(said)))
	}
	return string(said), nil
}

// tail returns the last lines of an output.
func tail(output string) string {
	const keep = 20
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.Join(lines[max(0, len(lines)-keep):], "\n")
}
