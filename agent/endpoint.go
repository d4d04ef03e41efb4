package agent

import (
	"context"
	"errors"
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

func internalIP(node *corev1.Node) string {
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	return ""
}

// connect opens a connection, which the caller closes. An error is in a person's
// words.
func connect(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, errors.New(explain(ctx, network, address, err))
	}
	return connection, nil
}
