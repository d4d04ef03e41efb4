//go:build unix

// Command standin is what runs in the containers of the end-to-end tests, apart
// from nodegate itself: the container that holds a pod's namespaces, a workload, a
// network (base) and a mesh that is chained in it, each with as much behaviour as
// the tests need. Files in a directory of the node tell it what to do.
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	if filepath.Base(os.Args[0]) == pluginType {
		os.Exit(runPlugin(os.Getenv, os.Stdin, os.Stdout))
	}
	command := "pause"
	if len(os.Args) > 1 {
		command = os.Args[1]
	}
	var err error
	switch command {
	case "pause":
		pause()
	case "work":
		err = runWork(os.Getenv)
	case "install":
		err = install(os.Args[2:])
	case "base":
		err = runBase()
	case "mesh":
		err = runMesh()
	default:
		err = fmt.Errorf("there is no command %q", command)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "standin:", err)
		os.Exit(1)
	}
}

// pause waits for a signal to end, and for processes that nobody else waits for.
func pause() {
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGINT, syscall.SIGTERM)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for {
		select {
		case <-ends:
			return
		case <-children:
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}

// install copies this program, and the entry of its plugin, into a folder.
func install(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("install takes a folder")
	}
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer func() { _ = program.Close() }() // only read
	binary, err := io.ReadAll(program)
	if err != nil {
		return err
	}
	if err := replace(filepath.Join(args[0], pluginType), binary, 0o755); err != nil {
		return err
	}
	return replace(filepath.Join(args[0], "entry.json"), []byte(`{"type": "`+pluginType+`", "logLevel": "info"}`), 0o644)
}

// replace writes a file in one step.
func replace(path string, content []byte, mode os.FileMode) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(temporary, content, mode); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
