package hold

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nodegate/nodegate/internal/netconf"
)

// version is that of the protocol. A change that an older side would misread makes
// another one; a further field does not.
const version = 1

const (
	// maxLineBytes bounds what either side reads of a line.
	maxLineBytes = 4 << 10
	// maxReasonBytes leaves room for escapes in a line.
	maxReasonBytes = 600
)

// question is the one line of the plugin.
type question struct {
	Version int `json:"v"`
	netconf.Pod
	// Age is for how long the runtime has been about it, in milliseconds.
	Age int64 `json:"age,omitempty"`
}

// began is when the runtime began with the pod, within the time of one attempt.
func (q question) began(now time.Time) time.Time {
	return now.Add(-time.Duration(min(max(q.Age, 0), maxWait.Milliseconds())) * time.Millisecond)
}

// answer is a line of the agent.
type answer struct {
	Version int `json:"v"`
	// Open: the pod waits for nothing.
	Open bool `json:"open"`
	// Again: it waits in vain, and is to be tried again.
	Again bool `json:"again,omitempty"`
	// Reason is what it waits for, for people.
	Reason string `json:"reason,omitempty"`
}

func (q question) check() error {
	if q.Version != version {
		return fmt.Errorf("this agent speaks version %d, and not %d", version, q.Version)
	}
	return nil
}

func closed(reason error) answer {
	text := strings.ToValidUTF8(reason.Error(), "")
	if len(text) > maxReasonBytes {
		text = strings.ToValidUTF8(text[:maxReasonBytes], "") + "…"
	}
	return answer{Version: version, Reason: text}
}

func writeLine(to io.Writer, message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = to.Write(append(line, '\n'))
	return err
}
