//go:build linux

package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// Command is the argument by which a program becomes a machine's process 1.
const Command = "machine"

// boot is what process 1 must know.
type boot struct {
	Options

	BootID string
	Groups Groups
}

// bootVariable hands the boot on to the second half of process 1.
const bootVariable = "NODEGATE_E2E_BOOT"

// Main is process 1 of a machine. It returns only if it fails, which ends the
// machine.
func Main() error {
	if text, ok := os.LookupEnv(bootVariable); ok {
		var b boot
		if err := json.Unmarshal([]byte(text), &b); err != nil {
			return err
		}
		return b.run()
	}
	b, err := readBoot(os.Stdin)
	if err != nil {
		return err
	}
	return b.enterGroups()
}

// enterGroups makes the machine's control groups the roots of what it sees. That is
// true of the calling thread alone, so the program begins again on this thread.
func (b boot) enterGroups() error {
	runtime.LockOSThread()
	if err := b.Groups.join(); err != nil {
		return err
	}
	if err := syscall.Unshare(syscall.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("making a namespace of control groups: %w", err)
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(program, []string{program, Command}, append(environment(), bootVariable+"="+string(text)))
}

// run starts what a machine runs, and looks after it for ever.
func (b boot) run() error {
	if err := syscall.Sethostname([]byte(b.Name)); err != nil {
		return err
	}
	if err := b.mountAll(); err != nil {
		return fmt.Errorf("mounting: %w", err)
	}
	if err := os.Unsetenv(bootVariable); err != nil {
		return err
	}
	if err := writeRuntimeSpec(); err != nil {
		return fmt.Errorf("writing what containers are made from: %w", err)
	}
	services := newSupervisor()
	if err := services.start("containerd", "containerd", "--config", containerdFile, "--log-level", "info"); err != nil {
		return err
	}
	go func() {
		if err := b.importImages(services); err != nil {
			fmt.Println("importing images:", err)
			return
		}
		err := services.start("kubelet", "/machine/kubelet",
			"--config="+kubeletFile, "--kubeconfig="+kubeconfigFile,
			"--hostname-override="+b.Name, "--node-ip="+b.Network.Address(b.Number), "--v=2")
		if err != nil {
			fmt.Println("starting the kubelet:", err)
		}
	}()
	return services.reap()
}

// writeRuntimeSpec writes the runtime's own specification of a container, and a hook
// into it that shows the boot's id.
func writeRuntimeSpec() error {
	text, err := exec.Command("ctr", "oci", "spec").Output()
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	spec["hooks"] = map[string]any{"createContainer": []any{
		map[string]any{"path": bootIDHook, "env": environment()},
	}}
	if text, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(runtimeFile, text, 0o644)
}

// importImages gives containerd the images, the first time.
func (b boot) importImages(services *supervisor) error {
	if _, err := os.Stat(importedFile); err == nil {
		return services.await("ctr", "version")
	}
	if err := services.await("ctr", "version"); err != nil {
		return err
	}
	for i := range b.Images {
		if err := services.run("ctr", "-n", "k8s.io", "images", "import", fmt.Sprintf("/machine/images/%d.tar", i)); err != nil {
			return err
		}
	}
	return os.WriteFile(importedFile, nil, 0o600)
}

func environment() []string {
	return []string{"PATH=/machine/debian/usr/sbin:/machine/debian/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C"}
}

// lookPath finds a program as [environment] says.
func lookPath(name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, nil
	}
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		err = nil
	}
	return path, err
}
