//go:build linux

package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Options say what machine to make.
type Options struct {
	// Name is the host's, and the Node's.
	Name string
	// Number, from 1 on, is the machine's own among all.
	Number int
	// Dir is where the machine's disk is, and all else that is kept of it.
	Dir string
	// Program is the one whose [Command] runs [Main].
	Program string
	// Debian is the folder of unpacked packages: containerd, runc and CNI plugins.
	Debian string
	// Kubelet is the program.
	Kubelet string
	// Images are archives that containerd is given before the first kubelet starts,
	// and SandboxImage is the name of the one that holds a pod's namespaces.
	Images       []string
	SandboxImage string
	// Kubeconfig is the kubelet's.
	Kubeconfig string
	// Network is what the machine is plugged into.
	Network Network
	// Cgroup is the folder below which its control groups are, in every hierarchy.
	Cgroup string
}

// Machine is switched off when it is made.
type Machine struct {
	Options

	mu sync.Mutex
	// boots is when each was.
	boots []time.Time
	// init is process 1 while it runs, and ended closed once it does not.
	init  *exec.Cmd
	ended chan struct{}
	// bootID is that of the last boot.
	bootID string
}

// New lays out the disk of a new machine.
func New(o Options) (*Machine, error) {
	m := &Machine{Options: o}
	if err := m.makeDisk(); err != nil {
		return nil, fmt.Errorf("making the disk of %s: %w", o.Name, err)
	}
	return m, nil
}

// BootID is that of the last boot.
func (m *Machine) BootID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bootID
}

// Boot is the number of the boot that a time was in, from 1 on.
func (m *Machine) Boot(at time.Time) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	number := 0
	for number < len(m.boots) && !at.Before(m.boots[number]) {
		number++
	}
	return number
}

// Booted is when the last boot was.
func (m *Machine) Booted() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boots[len(m.boots)-1]
}

// groups are the control groups of the last boot.
func (m *Machine) groups() Groups {
	return groups(m.Cgroup, fmt.Sprintf("%s-%d", m.Name, len(m.boots)))
}

// Wipe gives a machine that is off a new disk.
func (m *Machine) Wipe() error {
	if err := os.RemoveAll(m.Disk("/")); err != nil {
		return fmt.Errorf("wiping the disk of %s: %w", m.Name, err)
	}
	return m.makeDisk()
}

// Disk is where a path of the disk is while the machine is on or off: one below
// /etc, /opt or /var.
func (m *Machine) Disk(path string) string { return filepath.Join(m.Dir, "disk", path) }

// Live is where any path of the machine is while it is on.
func (m *Machine) Live(path string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.init == nil {
		return filepath.Join(m.Dir, "is-switched-off")
	}
	return filepath.Join("/proc", strconv.Itoa(m.init.Process.Pid), "root", path)
}

// PowerOn boots the machine. It returns when its process 1 was told to go on: that
// containerd, kubelet and pods run is for the caller to await.
func (m *Machine) PowerOn(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.init != nil {
		return fmt.Errorf("%s is on", m.Name)
	}
	m.boots = append(m.boots, time.Now())
	if err := m.powerOn(ctx); err != nil {
		return errors.Join(fmt.Errorf("switching %s on: %w", m.Name, err), m.powerOff())
	}
	return nil
}

// PowerOff ends everything in the machine at once.
func (m *Machine) PowerOff() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.powerOff(); err != nil {
		return fmt.Errorf("switching %s off: %w", m.Name, err)
	}
	return nil
}

func (m *Machine) powerOn(ctx context.Context) error {
	m.bootID = newBootID()
	b := boot{
		Options: m.Options, BootID: m.bootID,
		Groups: m.groups(),
	}
	if err := b.Groups.make(); err != nil {
		return err
	}
	said, err := json.Marshal(b)
	if err != nil {
		return err
	}
	console, err := os.OpenFile(m.Disk("/var/log/console.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = console.Close() }() // process 1 has its own
	init := exec.Command(m.Program, Command)
	init.Stdout, init.Stderr = console, console
	init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setsid:     true,
		Pdeathsig:  syscall.SIGKILL,
	}
	order, err := init.StdinPipe()
	if err != nil {
		return err
	}
	if err := init.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	m.init, m.ended = init, ended
	go func() {
		_ = init.Wait() // it never ends unasked, or its console says why
		close(ended)
	}()
	if err := m.Network.plug(ctx, m.Number, init.Process.Pid); err != nil {
		return err
	}
	// Its network is there: it may go on.
	_, err = order.Write(said)
	return errors.Join(err, order.Close())
}

func (m *Machine) powerOff() error {
	if m.init == nil {
		return nil
	}
	err := m.init.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-m.ended // returns when every process of the machine is gone
	m.init = nil
	return errors.Join(err, m.groups().remove())
}

// readBoot is what process 1 is told on its standard input.
func readBoot(in io.Reader) (boot, error) {
	var b boot
	if err := json.NewDecoder(in).Decode(&b); err != nil {
		return b, fmt.Errorf("reading what to boot: %w", err)
	}
	return b, nil
}
