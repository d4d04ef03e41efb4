package conflist

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// copyAttributes gives a file the extended attributes of another, its SELinux
// label among them. What it has already is not set again.
func copyAttributes(from, to string) error {
	names, err := listAttributes(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		value, err := attribute(from, name)
		if err != nil {
			return err
		}
		if has, err := attribute(to, name); err == nil && bytes.Equal(has, value) {
			continue
		}
		if err := syscall.Setxattr(to, name, value, 0); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return nil
}

// maxAttributeBytes is the kernel's XATTR_SIZE_MAX, and XATTR_LIST_MAX as well.
const maxAttributeBytes = 64 << 10

func listAttributes(path string) ([]string, error) {
	list := make([]byte, maxAttributeBytes)
	n, err := syscall.Listxattr(path, list)
	switch {
	case errors.Is(err, syscall.ENOTSUP):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("listing extended attributes: %w", err)
	}
	return strings.FieldsFunc(string(list[:n]), func(r rune) bool { return r == 0 }), nil
}

func attribute(path, name string) ([]byte, error) {
	value := make([]byte, maxAttributeBytes)
	n, err := syscall.Getxattr(path, name, value)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return value[:n], nil
}
