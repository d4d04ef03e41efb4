//go:build unix

// Package record is what the end-to-end tests and their stand-ins tell each other by
// files of a node. Plugin and workloads note there which pod's network the mesh took
// in, and in which network a workload started: together these say whether a pod runs
// without its mesh. Mesh and network are told there what to do.
package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// The files have a line of JSON for each event. They are on the node's disk.
const (
	AddsFile   = "/var/lib/mesh/adds"
	StartsFile = "/var/lib/workload/starts"
	ServesFile = "/var/lib/mesh/serves"
)

// The files by which the tests tell mesh and network what to do, and what comes of it.
const (
	// HoldMesh has the mesh not serve for as long as it is there, as one that is slow
	// or broken.
	HoldMesh = "/etc/mesh/hold"
	// HoldBase has the network wait with its list for as long as it is there.
	HoldBase = "/etc/machine/hold-base"
	// KeepList has the network leave a list alone that is there when it starts.
	KeepList = "/etc/machine/keep-list"
	// ListFile is the network's list.
	ListFile = "/etc/cni/net.d/10-base.conflist"
	// SubnetFile says what addresses the node's pods have.
	SubnetFile = "/etc/machine/pod-subnet"
)

// Add is a call of the mesh's plugin.
type Add struct {
	Time time.Time `json:"time"`
	// Pod is namespace and name.
	Pod string `json:"pod"`
	UID string `json:"uid"`
	// Network is the pod's network namespace.
	Network uint64 `json:"network"`
	// Served says whether the mesh took the pod in: its socket accepted.
	Served bool `json:"served"`
}

// Serve is when the mesh began to serve.
type Serve struct {
	Time time.Time `json:"time"`
}

// Start is that of a workload's process.
type Start struct {
	Time    time.Time `json:"time"`
	Pod     string    `json:"pod"`
	UID     string    `json:"uid"`
	Network uint64    `json:"network"`
}

// Namespace identifies a namespace by its file, for as long as it exists.
func Namespace(path string) (uint64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	status, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("there is no inode of %s", path)
	}
	return status.Ino, nil
}

// Append adds a line to a file, in one write.
func Append(path string, event any) error {
	line, err := json.Marshal(event)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
}

// Read returns all events of a file, none if it does not exist. A last line that is
// still being written is left out.
func Read[T any](path string) ([]T, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	var all []T
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var event T
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		all = append(all, event)
	}
	return all, nil
}
