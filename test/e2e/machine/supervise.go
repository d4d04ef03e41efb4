//go:build linux

package machine

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// restartDelay is how long a service that has ended stays away.
const restartDelay = time.Second

// supervisor is what process 1 does: it waits for every process that ends, its own
// and those whose parent is gone, and starts services again.
type supervisor struct {
	mu       sync.Mutex
	services map[int]func() error
	waiting  map[int]chan syscall.WaitStatus
}

func newSupervisor() *supervisor {
	return &supervisor{services: map[int]func() error{}, waiting: map[int]chan syscall.WaitStatus{}}
}

// start starts a service, whose output goes to /var/log, and starts it again
// whenever it ends.
func (s *supervisor) start(name string, args ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err := spawn("/var/log/"+name+".log", args)
	if err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	s.services[pid] = func() error { return s.start(name, args...) }
	return nil
}

// run runs a program to its end.
func (s *supervisor) run(args ...string) error {
	s.mu.Lock()
	pid, err := spawn("/var/log/console.log", args)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	ended := make(chan syscall.WaitStatus, 1)
	s.waiting[pid] = ended
	s.mu.Unlock()
	if status := <-ended; status != 0 {
		return fmt.Errorf("%v ended with status %d", args, status.ExitStatus())
	}
	return nil
}

// await runs a program until it succeeds.
func (s *supervisor) await(args ...string) error {
	var err error
	for began := time.Now(); time.Since(began) < 2*time.Minute; <-time.After(100 * time.Millisecond) {
		if err = s.run(args...); err == nil {
			return nil
		}
	}
	return err
}

// reap returns only if it cannot wait.
func (s *supervisor) reap() error {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.ECHILD):
			<-time.After(100 * time.Millisecond)
			continue
		case err != nil:
			return fmt.Errorf("waiting for processes: %w", err)
		}
		s.mu.Lock()
		again, ended := s.services[pid], s.waiting[pid]
		delete(s.services, pid)
		delete(s.waiting, pid)
		s.mu.Unlock()
		if ended != nil {
			ended <- status
		}
		if again != nil {
			fmt.Printf("process %d of a service has ended with status %#x\n", pid, status)
			time.AfterFunc(restartDelay, func() {
				if err := again(); err != nil {
					fmt.Println(err)
				}
			})
		}
	}
}

// spawn starts a program without waiting for it, which only [supervisor.reap] may.
func spawn(log string, args []string) (int, error) {
	path, err := lookPath(args[0])
	if err != nil {
		return 0, err
	}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() { _ = out.Close() }() // the program has its own
	process, err := os.StartProcess(path, args, &os.ProcAttr{
		Env: environment(), Dir: "/", Files: []*os.File{nil, out, out}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, err
	}
	pid := process.Pid
	return pid, process.Release()
}
