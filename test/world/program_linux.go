package world

import "syscall"

// ownGroup puts a program into a process group of its own, and has the kernel kill
// it when this process is killed with no chance to react.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
