//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The base network's directory of the node, and its list.
const (
	baseList   = "/etc/cni/net.d/10-base.conflist"
	subnetFile = "/etc/machine/pod-subnet"
	// baseHoldFile has the network wait with its list for as long as it is there.
	baseHoldFile = "/etc/machine/hold-base"
	// baseKeepFile has it leave a list alone that is there.
	baseKeepFile = "/etc/machine/keep-list"
)

// runBase writes the network's list, as the agents of networks do when they start:
// anew, whatever was in it.
func runBase() error {
	for exists(baseHoldFile) {
		<-time.After(poll)
	}
	if exists(baseKeepFile) && exists(baseList) {
		pause()
		return nil
	}
	subnet, err := os.ReadFile(subnetFile)
	if err != nil {
		return err
	}
	list := fmt.Sprintf(`{
  "cniVersion": "0.4.0",
  "name": "base",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isDefaultGateway": true,
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni/networks",
        "ranges": [[{"subnet": %q}]]
      }
    }
  ]
}
`, strings.TrimSpace(string(subnet)))
	if err := os.MkdirAll(filepath.Dir(baseList), 0o755); err != nil {
		return err
	}
	if err := replace(baseList, []byte(list), 0o644); err != nil {
		return err
	}
	fmt.Println("wrote", baseList)
	pause()
	return nil
}
