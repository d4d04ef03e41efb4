//go:build linux

package machine

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// Network is a bridge that machines are plugged into. Whoever made it is the
// machines' router.
type Network struct {
	Bridge string
	// Router is its address, and the machines' are Prefix followed by 10 and their
	// number; all are in a /24.
	Router, Prefix string
	// Service is another address of the router's: the one by which pods know the API
	// server, for there is no kube-proxy.
	Service string
}

// Address is that of a machine.
func (n Network) Address(number int) string { return n.Prefix + strconv.Itoa(10+number) }

// PodSubnet is what addresses of a machine's pods are taken from.
func PodSubnet(number int) string { return fmt.Sprintf("10.244.%d.0/24", number) }

// Up makes the bridge in the network namespace of the caller.
func (n Network) Up(ctx context.Context) error {
	return ip(ctx, nil,
		"link set lo up",
		// With an address of its own: else it has the lowest of its ports', and another
		// whenever a machine is switched on or off, which the others' caches do not know.
		"link add "+n.Bridge+" address 02:00:00:00:00:01 type bridge",
		"addr add "+n.Router+"/24 dev "+n.Bridge,
		"addr add "+n.Service+"/32 dev lo",
		"link set "+n.Bridge+" up")
}

// Down undoes [Network.Up].
func (n Network) Down(ctx context.Context) error {
	return ip(ctx, nil, "link del "+n.Bridge, "addr del "+n.Service+"/32 dev lo")
}

// port is the end of a machine's cable at the bridge.
func port(number int) string { return "port" + strconv.Itoa(number) }

// plug connects the network namespace of a process. The cable goes when the
// namespace does.
func (n Network) plug(ctx context.Context, number, pid int) error {
	// What an earlier boot had may be going still: namespaces end in the background.
	_ = ip(ctx, nil, "link del "+port(number))
	err := ip(ctx, nil,
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", port(number), pid),
		fmt.Sprintf("link set %s master %s up", port(number), n.Bridge),
		fmt.Sprintf("route replace %s via %s", PodSubnet(number), n.Address(number)))
	if err != nil {
		return err
	}
	return ip(ctx, []string{"nsenter", "--net", "--target", strconv.Itoa(pid)},
		"link set lo up",
		"addr add "+n.Address(number)+"/24 dev eth0",
		"link set eth0 up",
		"route add default via "+n.Router)
}

// Unplug takes the machine off the network, and Plug puts it back.
func (m *Machine) Unplug(ctx context.Context) error {
	return ip(ctx, nil, "link set "+port(m.Number)+" down")
}

// Plug undoes [Machine.Unplug].
func (m *Machine) Plug(ctx context.Context) error {
	return ip(ctx, nil,
		"link set "+port(m.Number)+" up",
		fmt.Sprintf("route replace %s via %s", PodSubnet(m.Number), m.Network.Address(m.Number)))
}

// ip runs commands of ip(8), as the prefix says where.
func ip(ctx context.Context, prefix []string, commands ...string) error {
	for _, line := range commands {
		args := append(append([]string{}, prefix...), append([]string{"ip"}, strings.Fields(line)...)...)
		if said, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, said)
		}
	}
	return nil
}
