//go:build linux

package machine

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodegate/nodegate/test/e2e/record"
)

// The machine's own files.
const (
	kubeconfigFile = "/etc/kubernetes/kubelet.kubeconfig"
	kubeletFile    = "/etc/kubernetes/kubelet.yaml"
	containerdFile = "/etc/containerd/config.toml"
	runtimeFile    = "/etc/containerd/base.json"
	importedFile   = "/var/lib/machine/imported"

	// bootIDFile has the id of the boot, and bootIDHook is what shows it to containers:
	// these have a /proc of their own, in which it is the kernel's.
	bootIDFile = "/run/machine/boot_id"
	bootIDHook = "/etc/machine/show-boot-id"

	netDir = "/etc/cni/net.d"
	binDir = "/opt/cni/bin"
)

// kubeletConfig: the control groups of a kubelet's own are switched off, for they
// want all of the host's. Leases are renewed each second, so that a short grace of
// the control plane is no accident, and files of ConfigMaps follow within seconds.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
nodeLeaseDurationSeconds: 4
syncFrequency: 10s
resolvConf: /etc/resolv.conf
`

const containerdConfig = `version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "SANDBOX"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "/etc/containerd/base.json"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
`

// bootIDScript is run for each container, when its file systems are mounted.
const bootIDScript = `#!/bin/sh
bundle=$(sed 's/.*"bundle":"\([^"]*\)".*/\1/')
exec mount --no-mtab --bind ` + bootIDFile + ` "$bundle/rootfs/proc/sys/kernel/random/boot_id"
`

// plugins of Debian that the network of a machine needs.
func plugins() []string { return []string{"bridge", "host-local", "loopback"} }

// makeDisk lays out the disk.
func (m *Machine) makeDisk() error {
	for _, dir := range []string{"/var/log", "/var/lib/machine", "/var/tmp", netDir, binDir, "/root"} {
		if err := os.MkdirAll(m.Disk(dir), 0o755); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"/etc/passwd":      "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
		"/etc/group":       "root:x:0:\nnogroup:x:65534:\n",
		"/etc/hosts":       "127.0.0.1 localhost\n",
		"/etc/hostname":    m.Name + "\n",
		"/etc/resolv.conf": "",
		"/etc/machine-id":  hex.EncodeToString([]byte(fmt.Sprintf("machine-%08d", m.Number))) + "\n",
		kubeconfigFile:     m.Kubeconfig,
		kubeletFile:        kubeletConfig,
		containerdFile:     strings.ReplaceAll(containerdConfig, "SANDBOX", m.SandboxImage),
		record.SubnetFile:  PodSubnet(m.Number) + "\n",
		bootIDHook:         bootIDScript,
	} {
		if err := m.WriteFile(name, content); err != nil {
			return err
		}
	}
	if err := os.Chmod(m.Disk(bootIDHook), 0o755); err != nil {
		return err
	}
	for _, plugin := range plugins() {
		binary, err := os.ReadFile(filepath.Join(m.Debian, "usr/lib/cni", plugin))
		if err != nil {
			return err
		}
		if err := os.WriteFile(m.Disk(filepath.Join(binDir, plugin)), binary, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// WriteFile replaces a file of the disk in one step, and makes the folders that it
// needs.
func (m *Machine) WriteFile(path, content string) error {
	target := m.Disk(path)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(target), "."+filepath.Base(target)+".new")
	if err := os.WriteFile(temporary, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, target)
}

// newBootID is a random one of the kernel's form.
func newBootID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
