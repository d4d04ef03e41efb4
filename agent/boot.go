package agent

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nodegate/nodegate/gate"
)

// DefaultBootIDPath is where Linux shows the id of the running boot.
const DefaultBootIDPath = "/proc/sys/kernel/random/boot_id"

// maxBootIDBytes is generous: a boot id is a UUID, but some systems have made up
// their own.
const maxBootIDBytes = 64

// bootID is the boot this process runs in, or why that is not known.
type bootID struct {
	id  string
	err error
}

// readBootID reads the id as the kubelet does, so that both compare equal.
func readBootID(path string) bootID {
	file, err := os.Open(path)
	if err != nil {
		return bootID{err: fmt.Errorf("reading the boot id: %w", err)}
	}
	defer func() { _ = file.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(file, maxBootIDBytes+2))
	if err != nil {
		return bootID{err: fmt.Errorf("reading the boot id: %w", err)}
	}
	id := strings.TrimSpace(string(data))
	if !usableBootID(id) {
		return bootID{err: fmt.Errorf("%s does not hold a boot id but %.80q", path, id)}
	}
	return bootID{id: id}
}

func usableBootID(id string) bool {
	return len(id) <= maxBootIDBytes && !strings.ContainsFunc(id, unprintable) && gate.ValidBootID(id)
}

func unprintable(r rune) bool { return r < '!' || r > '~' }

// differs says why this is not known to be the boot that the Node shows; nil if
// it is. After a reboot it takes the kubelet some seconds to show the new one.
func (b bootID) differs(shown string) error {
	switch {
	case b.err != nil:
		return b.err
	case b.id != shown:
		return fmt.Errorf("this machine's boot id is %s, the Node shows %q", b.id, shown)
	}
	return nil
}

// inHeartbeat is what the heartbeat says. Without a boot id it says something
// that is none, and so opens nothing.
func (b bootID) inHeartbeat() string {
	if b.err != nil {
		return "unknown"
	}
	return b.id
}
