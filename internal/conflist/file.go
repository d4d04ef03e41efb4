package conflist

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// maxFileBytes bounds what is read of one file. Lists of 1 MiB are known to
// load; one of this size is not a network configuration.
const maxFileBytes = 4 << 20

// readRegular returns the content and the state of a regular file, which a symbolic link may
// stand for. It never opens anything else: opening a FIFO waits for a writer,
// and opening a device may do things.
func readRegular(path string) ([]byte, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if err := onlyRegular(path, info); err != nil {
		return nil, nil, err
	}
	// The file may have been replaced by a FIFO since: do not wait for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }() // only read
	// Before the content: a write that comes in between must show afterwards.
	if info, err = file.Stat(); err != nil {
		return nil, nil, err
	}
	if err := onlyRegular(path, info); err != nil {
		return nil, nil, err
	}
	data, err := readBounded(path, file)
	return data, info, err
}

// notRegularError says what stands where a file should.
type notRegularError struct {
	path string
	mode fs.FileMode
}

func (e notRegularError) Error() string {
	return fmt.Sprintf("%s is no regular file but %s", e.path, kind(e.mode))
}

func onlyRegular(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return notRegularError{path, info.Mode()}
	}
	return nil
}

func readBounded(path string, from io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxFileBytes)
	}
	return data, nil
}

func kind(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "of mode " + mode.String()
}
