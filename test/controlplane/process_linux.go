package controlplane

import "syscall"

// ownGroup puts a child into a process group, to be killed as one, and has the
// kernel kill the child when this process is killed with no chance to react.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
