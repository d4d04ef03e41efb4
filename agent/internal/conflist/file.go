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

// readRegular returns the content of a regular file, which a symbolic link may
// stand for. It never opens anything else: opening a FIFO waits for a writer,
// and opening a device may do things.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := onlyRegular(path, info); err != nil {
		return nil, err
	}
	// The file may have been replaced by a FIFO since: do not wait for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	if info, err = file.Stat(); err != nil {
		return nil, err
	}
	if err := onlyRegular(path, info); err != nil {
		return nil, err
	}
	return readBounded(path, file)
}

func onlyRegular(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file but %s", path, kind(info.Mode()))
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
