package gate

import (
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ConflistCheck passes while the plugin is chained in the CNI configuration that
// the node's runtime loads.
type ConflistCheck struct {
	// PluginType is the chained plugin's type, which is also its binary's name.
	PluginType string `json:"pluginType"`
	// Dir is the runtime's CNI configuration directory. Default: /etc/cni/net.d.
	Dir string `json:"dir,omitempty"`
	// BinDir is the directory of CNI binaries. Default: /opt/cni/bin.
	BinDir string `json:"binDir,omitempty"`
	// Runtime is the node's container runtime, containerd or cri-o, with its
	// version if that is known, as in containerd://1.7.27. Default: what the Node
	// says (status.nodeInfo.containerRuntimeVersion).
	Runtime string `json:"runtime,omitempty"`
	// Network is the name of the cluster's network. It is needed where CRI-O is told
	// to pick by name (cni_default_network), and where the network is one that
	// container tools bring, such as podman's. Default: whatever is loaded.
	Network string `json:"network,omitempty"`
	// EntryFile is where the installer keeps the plugin's entry, one JSON object, for
	// the agent to put into the list where another writer takes it out. Its name must
	// not be one that a runtime loads. Default: [DefaultEntryFile].
	EntryFile string `json:"entryFile,omitempty"`
	// Disabled switches the check off, and the repair with it: the check passes, and
	// nothing is written. A running agent follows a change of it.
	Disabled bool `json:"disabled,omitempty"`
}

// DefaultEntryFile is the file in which the entry of a plugin is kept, for a
// configuration directory.
func DefaultEntryFile(dir, pluginType string) string {
	return filepath.Join(dir, "."+pluginType+"-entry")
}

// SetDefaults fills in what the check leaves to defaults.
func (c *ConflistCheck) SetDefaults() {
	setDefault(&c.Dir, DefaultNetDir)
	setDefault(&c.BinDir, DefaultBinDir)
	setDefault(&c.EntryFile, DefaultEntryFile(c.Dir, c.PluginType))
}

func (c *ConflistCheck) validate(path *field.Path) field.ErrorList {
	faults := validatePath(c.Dir, path.Child("dir"))
	faults = append(faults, validatePath(c.BinDir, path.Child("binDir"))...)
	switch {
	case c.PluginType == "":
		faults = append(faults, field.Required(path.Child("pluginType"), "the chained plugin's type"))
	case c.PluginType != filepath.Base(c.PluginType) || c.PluginType == "." || c.PluginType == "..":
		faults = append(faults, field.Invalid(path.Child("pluginType"), c.PluginType, "is the name of a binary, without a path"))
	}
	if name, _, _ := strings.Cut(c.Runtime, "://"); c.Runtime != "" && !slices.Contains(runtimes(), name) {
		faults = append(faults, field.NotSupported(path.Child("runtime"), c.Runtime, runtimes()))
	}
	faults = append(faults, validatePath(c.EntryFile, path.Child("entryFile"))...)
	if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(c.EntryFile)) {
		faults = append(faults, field.Invalid(path.Child("entryFile"), c.EntryFile, "must not end in .conf, .conflist or .json: a runtime would load it"))
	}
	return faults
}

// runtimes are those of which is known how they read their CNI configuration.
func runtimes() []string { return []string{"containerd", "cri-o"} }
