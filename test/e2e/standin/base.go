//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodegate/nodegate/test/e2e/record"
)

// runBase writes the network's list, as the agents of networks do when they start:
// anew, whatever was in it.
func runBase() error {
	for exists(record.HoldBase) {
		<-time.After(poll)
	}
	if exists(record.KeepList) && exists(record.ListFile) {
		pause()
		return nil
	}
	subnet, err := os.ReadFile(record.SubnetFile)
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
	if err := os.MkdirAll(filepath.Dir(record.ListFile), 0o755); err != nil {
		return err
	}
	if err := replace(record.ListFile, []byte(list), 0o644); err != nil {
		return err
	}
	fmt.Println("wrote", record.ListFile)
	pause()
	return nil
}
