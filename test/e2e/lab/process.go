//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// process is one of the control plane's, which can be ended and started again.
type process struct {
	path string
	args []string
	log  string

	command *exec.Cmd
	ended   chan struct{}
}

// start starts it, if it does not run.
func (p *process) start() error {
	if p.command != nil {
		return nil
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own
	command := exec.Command(p.path, p.args...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", filepath.Base(p.path), err)
	}
	ended := make(chan struct{})
	go func() {
		_ = command.Wait() // how it ended is in its log
		close(ended)
	}()
	p.command, p.ended = command, ended
	return nil
}

// stop asks it to end, and kills it if it does not.
func (p *process) stop() error {
	if p == nil || p.command == nil {
		return nil
	}
	err := p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		err = errors.Join(err, p.command.Process.Kill())
		<-p.ended
	}
	p.command = nil
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
