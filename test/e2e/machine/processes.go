//go:build linux

package machine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Signal sends a signal to every process of the machine that runs a program with a
// first argument, or with none, in whatever container, and returns how many there were.
func (m *Machine) Signal(signal syscall.Signal, program, argument string) (int, error) {
	m.mu.Lock()
	group := []byte(m.groups().name())
	m.mu.Unlock()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	count := 0
	for _, file := range commands {
		command, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		words := append(strings.Split(string(command), "\x00"), "")
		if filepath.Base(words[0]) != program || words[1] != argument {
			continue
		}
		dir := filepath.Dir(file)
		if in, err := os.ReadFile(filepath.Join(dir, "cgroup")); err != nil || !bytes.Contains(in, group) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return count, err
		}
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return count, err
		}
		count++
	}
	return count, nil
}
