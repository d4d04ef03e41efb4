//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/nodegate/nodegate/test/e2e/record"
)

const (
	// socketPath is what the mesh serves on.
	socketPath = "/run/mesh/cni.sock"
	// poll is how often mesh and network look whether they are to wait.
	poll = 20 * time.Millisecond
)

// runMesh serves the socket, unless it is told not to.
func runMesh() error {
	var listener net.Listener
	for {
		switch held := exists(record.HoldMesh); {
		case held && listener != nil:
			_ = listener.Close() // which removes the socket
			listener = nil
			fmt.Println("serves no longer")
		case !held && listener == nil:
			var err error
			if listener, err = serve(); err != nil {
				return err
			}
			if err := record.Append(record.ServesFile, record.Serve{Time: time.Now()}); err != nil {
				return err
			}
			fmt.Println("serves")
		}
		<-time.After(poll)
	}
}

// serve takes what an earlier process has left out of the way, and accepts.
func serve() (net.Listener, error) {
	if err := os.Remove(socketPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", socketPath)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
		}
	}()
	return listener, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
