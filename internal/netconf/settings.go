package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"
)

const (
	// PluginType is the plugin's name in a list and that of its binary.
	PluginType = "nodegate-cni"
	// defaultSocket is where the agent answers. Its directory is the agent's own.
	defaultSocket = "/run/nodegate/cni.sock"
	// DefaultTimeout is how long a pod waits in one attempt. A kubelet tries again
	// only 10 to 15 seconds after one that failed, and gives up on a runtime after
	// two minutes.
	DefaultTimeout = 20 * time.Second
	// MaxTimeout leaves the plugins around this one their part of those minutes.
	MaxTimeout = time.Minute
	// Namespace is nodegate's own, whose pods never wait.
	Namespace = "nodegate-system"
	// defaultExempt are the pods that wait for nothing unless something else is
	// said: others, the gated agent among them, may need the cluster's DNS.
	defaultExempt = "kube-system"

	// MaxSocketPath is the longest path that a socket can have (sun_path of unix(7)
	// has 108 bytes with its final NUL), less what the name is longer by while the
	// socket is put in place.
	MaxSocketPath = 107 - len(".") - len(TemporaryInfix) - 8
	// TemporaryInfix stands in such a name before eight hexadecimal digits.
	TemporaryInfix = ".new-"
)

// Settings are what the plugin's entry in a list says.
type Settings struct {
	// Socket is the agent's.
	Socket string
	// Timeout bounds the wait.
	Timeout time.Duration
	// Exempt are pods that never wait, known without the agent: each a namespace, or
	// namespace/name with the wildcards of [path.Match] in the name.
	Exempt []string
	// Status: STATUS fails while an ordinary pod would have to wait.
	Status bool
}

// entry is [Settings] as the entry spells it.
type entry struct {
	Type    string    `json:"type"`
	Socket  *string   `json:"socket,omitempty"`
	Timeout *string   `json:"timeout,omitempty"`
	Exempt  *[]string `json:"exempt,omitempty"`
	Status  bool      `json:"status,omitempty"`
}

// Defaults are the settings of an entry that has none.
func Defaults() Settings {
	return Settings{Socket: defaultSocket, Timeout: DefaultTimeout, Exempt: []string{defaultExempt}}
}

// ParseSettings reads what the plugin is called with, or its entry in a list. It
// passes over keys that are not its own: the runtime adds some.
func ParseSettings(data []byte) (Settings, error) {
	var e entry
	if err := json.Unmarshal(data, &e); err != nil {
		return Settings{}, fmt.Errorf("reading the settings: %w", err)
	}
	s := Defaults()
	if e.Socket != nil {
		s.Socket = *e.Socket
	}
	if e.Exempt != nil {
		s.Exempt = *e.Exempt
	}
	s.Status = e.Status
	if e.Timeout != nil {
		timeout, err := time.ParseDuration(*e.Timeout)
		if err != nil {
			return Settings{}, Fault{"timeout", *e.Timeout, "must be a duration such as 20s"}
		}
		s.Timeout = timeout
	}
	var faults []error
	for _, fault := range s.Validate() {
		faults = append(faults, fault)
	}
	return s, errors.Join(faults...)
}

// Entry is the plugin's entry in a list, with everything spelled out.
func (s Settings) Entry() []byte {
	timeout := s.Timeout.String()
	exempt := s.Exempt
	if exempt == nil {
		exempt = []string{}
	}
	data, _ := json.Marshal(entry{PluginType, &s.Socket, &timeout, &exempt, s.Status}) //nolint:errchkjson // strings can be encoded
	return data
}

// Fault is what is wrong with one of the settings.
type Fault struct {
	Field, Value, Detail string
}

func (f Fault) Error() string { return fmt.Sprintf("%s is %q: %s", f.Field, f.Value, f.Detail) }

// Validate returns every fault.
func (s Settings) Validate() []Fault {
	var faults []Fault
	switch {
	case !filepath.IsAbs(s.Socket) || strings.ContainsRune(s.Socket, 0):
		faults = append(faults, Fault{"socket", s.Socket, "must be an absolute path"})
	case filepath.Dir(filepath.Clean(s.Socket)) == "/":
		faults = append(faults, Fault{"socket", s.Socket, "must be in a directory of its own"})
	case len(s.Socket) > MaxSocketPath:
		faults = append(faults, Fault{"socket", s.Socket, fmt.Sprintf("has %d bytes, at most %d are possible", len(s.Socket), MaxSocketPath)})
	}
	if s.Timeout <= 0 || s.Timeout > MaxTimeout {
		faults = append(faults, Fault{"timeout", s.Timeout.String(), fmt.Sprintf("must be more than zero and at most %s", MaxTimeout)})
	}
	for i, pattern := range s.Exempt {
		namespace, name, named := strings.Cut(pattern, "/")
		_, err := path.Match(name, "")
		if !canBeNamespace(namespace) || named && name == "" || strings.Contains(name, "/") || err != nil {
			faults = append(faults, Fault{fmt.Sprintf("exempt[%d]", i), pattern, "must be a namespace, or namespace/name with wildcards in the name"})
		}
	}
	return faults
}

// canBeNamespace reports whether the name is a DNS label, as those of namespaces
// are. One that cannot be would exempt nobody, and nobody would be told.
func canBeNamespace(name string) bool {
	strange := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
	return name != "" && len(name) <= 63 && name[0] != '-' && name[len(name)-1] != '-' && !strings.ContainsFunc(name, strange)
}

// Exempts reports whether the pod never waits.
func (s Settings) Exempts(pod Pod) bool {
	if pod.Namespace == Namespace {
		return true
	}
	for _, pattern := range s.Exempt {
		namespace, name, named := strings.Cut(pattern, "/")
		if pod.Namespace == "" || namespace != pod.Namespace {
			continue
		}
		if !named {
			return true
		}
		if matched, err := path.Match(name, pod.Name); err == nil && matched {
			return true
		}
	}
	return false
}
