//go:build unix

package world

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/nodegate/nodegate/gate"
)

// Configure writes what the node's agent reads: the configuration that is installed,
// but for where its checks look, and for what change does to each of them. Of a
// change, an agent that runs follows what a running agent follows.
func (n *Node) Configure(change func(*gate.Check)) error {
	cfg, err := gate.ParseConfiguration([]byte(n.world.options.Config))
	if err != nil {
		return err
	}
	n.checks = cfg.Gates[0].Checks
	for i := range n.checks {
		if err := n.localize(&n.checks[i]); err != nil {
			return err
		}
		change(&n.checks[i])
	}
	text, err := yaml.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("encoding configuration: %w", err)
	}
	return n.replace(configFile, string(text))
}

// localize has a check look into the node's folder, and at a port of its own.
func (n *Node) localize(check *gate.Check) error {
	switch {
	case check.Socket != nil:
		check.Socket.Path = n.path(filepath.Base(check.Socket.Path))
	case check.Conflist != nil:
		n.plugin = check.Conflist.PluginType
		check.Conflist.EntryFile = n.path(netFolder, filepath.Base(check.Conflist.EntryFile))
		check.Conflist.Dir, check.Conflist.BinDir = n.path(netFolder), n.path(binFolder)
	case check.HTTP != nil:
		port, err := n.port(check.Name)
		if err != nil {
			return err
		}
		check.HTTP.Port = port
	}
	return nil
}

// port is the same for a check as long as the node lives.
func (n *Node) port(check string) (int32, error) {
	if port, known := n.ports[check]; known {
		return port, nil
	}
	address, err := freeAddress()
	if err != nil {
		return 0, err
	}
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return 0, err
	}
	n.ports[check] = int32(port)
	return n.ports[check], nil
}

// Serve starts the gated agent: what the checks look at accepts, and answers. With
// names, only what the checks of these names look at.
func (n *Node) Serve(names ...string) error {
	var faults []error
	for i := range n.checks {
		name := n.checks[i].Name
		if n.endpoints[name] != nil || len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		if err := n.serve(&n.checks[i]); err != nil {
			faults = append(faults, fmt.Errorf("serving what %s looks at: %w", name, err))
		}
	}
	return errors.Join(faults...)
}

func (n *Node) serve(check *gate.Check) error {
	network, address := "unix", ""
	switch {
	case check.Socket != nil:
		address = check.Socket.Path
	case check.HTTP != nil:
		network, address = "tcp", net.JoinHostPort(localhost, strconv.Itoa(int(check.HTTP.Port)))
	default:
		return nil
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	n.endpoints[check.Name] = listener
	healthy := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Handler: healthy, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }() // ends with its listener
	return nil
}

// StopServing ends what the checks of these names look at, or all of it.
func (n *Node) StopServing(names ...string) {
	for name, endpoint := range n.endpoints {
		if len(names) == 0 || slices.Contains(names, name) {
			_ = endpoint.Close()
			delete(n.endpoints, name)
		}
	}
}
