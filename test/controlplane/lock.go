//go:build unix

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// tryLock opens a lock file and takes its lock if nobody has it. The caller
// closes the file to let go. The file stays: removing it would let a waiter
// lock a file that the next comer cannot see.
func tryLock(path string) (file *os.File, held bool, err error) {
	file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, false, err
	}
	err = flock(file, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return file, false, nil
	}
	if err != nil {
		_ = file.Close()
		return nil, false, err
	}
	return file, true, nil
}

// waitForLock blocks until the lock is free or ctx ends. On error the file is
// closed, if need be once the lock was got after all.
func waitForLock(ctx context.Context, file *os.File) error {
	got := make(chan error)
	go func() {
		err := flock(file, syscall.LOCK_EX)
		select {
		case got <- err:
		case <-ctx.Done():
			_ = file.Close()
		}
	}()
	select {
	case err := <-got:
		if err != nil {
			_ = file.Close()
		}
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w (%w)", ErrInterrupted, context.Cause(ctx))
	}
}

// flock is interrupted by the signals of Go's own scheduler.
func flock(file *os.File, how int) error {
	for {
		err := syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
