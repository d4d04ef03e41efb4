//go:build unix

package world

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// pollInterval is how often a list is looked at.
const pollInterval = time.Millisecond

// Overwrite is another CNI that copies its own list over the one that is there, in
// place and in two parts, as slow writers do. It fails if anybody touches the
// first part meanwhile. The time is that of the last write.
func (n *Node) Overwrite(pause time.Duration) (time.Time, error) {
	path := n.path(netFolder, ownConflist)
	text := []byte(baseList(mainPlugin))
	half := len(text) / 2
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = file.Close() }() // an error of a write is enough
	if _, err := file.Write(text[:half]); err != nil {
		return time.Time{}, err
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	<-timer.C
	if found, err := os.ReadFile(path); err != nil || !bytes.Equal(found, text[:half]) {
		return time.Time{}, fmt.Errorf("half a list was changed to %q (%w)", found, err)
	}
	_, err = file.Write(text[half:])
	return time.Now(), err
}

// AwaitChained waits for the plugin to be in the list again.
func (n *Node) AwaitChained(ctx context.Context) (time.Time, error) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		found, err := os.ReadFile(n.path(netFolder, ownConflist))
		if err == nil && strings.Contains(string(found), n.plugin) {
			return time.Now(), nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("waiting for the list to be mended: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
