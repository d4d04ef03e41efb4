//go:build unix

package main

import (
	"time"

	"github.com/nodegate/nodegate/test/e2e/record"
)

// runWork is a workload. It notes where it runs, and does nothing else.
func runWork(getenv func(string) string) error {
	network, err := record.Namespace("/proc/self/ns/net")
	if err != nil {
		return err
	}
	err = record.Append(record.StartsFile, record.Start{
		Time: time.Now(), Pod: getenv("POD_NAMESPACE") + "/" + getenv("POD_NAME"), UID: getenv("POD_UID"), Network: network,
	})
	if err != nil {
		return err
	}
	pause()
	return nil
}
