package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// endpoint is where something on this node listens.
type endpoint struct {
	// host is an address, or stands for the Node's own.
	host string
	port int32
}

// address is host and port. It needs the Node only where that has the address.
func (e endpoint) address(node *corev1.Node) (string, error) {
	host := e.host
	if host == gate.HostInternalIP {
		if node == nil {
			return "", ErrNoNode
		}
		if host = internalIP(node); host == "" {
			return "", errors.New("the Node shows no internal address")
		}
	}
	return net.JoinHostPort(host, strconv.Itoa(int(e.port))), nil
}

// askFor connects and asks. The question may depend on the address.
func (e endpoint) askFor(ctx context.Context, node *corev1.Node, about func(address string) question) error {
	address, err := e.address(node)
	if err != nil {
		return err
	}
	if err := askAt(ctx, "tcp", address, about(address)); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}

func internalIP(node *corev1.Node) string {
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	return ""
}

// question asks a server for its health on a connection, and returns why it is
// not healthy. It does not close the connection.
type question func(ctx context.Context, connection net.Conn) error

// askAt connects and, if there is a question, asks it. An error is in a person's
// words.
func askAt(ctx context.Context, network, address string, ask question) error {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return errors.New(explain(ctx, network, address, err))
	}
	defer func() { _ = connection.Close() }() // nothing was to be kept
	if ask == nil {
		return nil
	}
	return ask(ctx, connection)
}
