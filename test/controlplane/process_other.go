//go:build unix && !linux

package controlplane

import "syscall"

// ownGroup puts a child into a process group, to be killed as one. If this
// process is killed with no chance to react, the child runs to its end; what
// it writes is not taken for finished.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
