package conflist

import (
	"fmt"
	"slices"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// The runtimes whose rules are known, as a Node names them.
const (
	Containerd = "containerd"
	CRIO       = "cri-o"
)

// level is a minor version of libcni, by which a runtime reads its files.
type level int

const (
	// libcni11: plugins stand in the list and nowhere else; disableCheck is a bool.
	libcni11 level = iota
	// libcni12: cniVersions counts, and a bool may be a string.
	libcni12
	// libcni13: plugins may also stand in a directory named after the network.
	libcni13
)

func levels() []level { return []level{libcni11, libcni12, libcni13} }

func (l level) String() string { return fmt.Sprintf("libcni 1.%d", int(l)+1) }

// Runtime is a container runtime and how it reads its CNI configuration.
type Runtime struct {
	// Name is [Containerd] or [CRIO].
	Name string
	text string
	// levels are those which the runtime may have been built with: one where its
	// version tells.
	levels []level
}

// ParseRuntime understands a runtime's name, alone or with its version as in a
// Node's status.nodeInfo.containerRuntimeVersion, such as containerd://1.7.27.
func ParseRuntime(text string) (Runtime, error) {
	name, version, _ := strings.Cut(text, "://")
	r := Runtime{Name: name, text: text, levels: levels()}
	if name != Containerd && name != CRIO {
		return r, fmt.Errorf("the runtime is %q: which CNI configuration it loads is not known", text)
	}
	parsed, err := utilversion.ParseGeneric(version)
	if err != nil {
		return r, nil //nolint:nilerr // a version that says nothing leaves all levels possible
	}
	for _, built := range builtWith() {
		if built.name == name && parsed.AtLeast(utilversion.MustParseGeneric(built.since)) {
			r.levels = []level{built.level}
		}
	}
	return r, nil
}

func (r Runtime) String() string { return r.text }

func (r Runtime) newest() level { return slices.Max(r.levels) }

type build struct {
	name, since string
	level       level
}

// builtWith tells from which version on a runtime's go.mod asks for a libcni, in
// ascending order.
func builtWith() []build {
	return []build{
		{Containerd, "1.6.0", libcni11},
		{Containerd, "2.0.0", libcni12},
		{Containerd, "2.1.0", libcni13},
		{CRIO, "1.34.0", libcni13},
	}
}
