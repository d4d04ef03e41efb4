package conflist

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/libcni"
	cniversion "github.com/containernetworking/cni/pkg/version"
)

const (
	extensionList   = ".conflist"
	extensionSingle = ".conf"
	extensionJSON   = ".json"
	extensionDropIn = ".conf"
)

// extensions are those of the files that runtimes load.
func extensions() []string { return []string{extensionSingle, extensionList, extensionJSON} }

// ErrNoCandidate says that the directory holds no CNI configuration at all, as
// before the cluster's network has been installed.
var ErrNoCandidate = errors.New("no CNI configuration")

// errNetwork says that what is loaded is not the network that was named.
var errNetwork = errors.New("not the network that is configured")

// Active is the configuration that a runtime loads from a directory.
type Active struct {
	// Path is the file's.
	Path string
	// Single marks a file of one plugin, not a list: nothing can be chained in it.
	Single bool
	// Network is the name of the network.
	Network string
	// CNIVersion is what the plugins are called with.
	CNIVersion string
	// Inline are the plugins in the file itself.
	Inline []*libcni.PluginConfig
	// DropIns are those from the directory named after the network.
	DropIns []*libcni.PluginConfig

	content content
}

// Plugins are all of them in the order in which they run.
func (a *Active) Plugins() []*libcni.PluginConfig { return slices.Concat(a.Inline, a.DropIns) }

// Types are the types of the plugins.
func (a *Active) Types() []string {
	types := []string{}
	for _, plugin := range a.Plugins() {
		types = append(types, plugin.Network.Type)
	}
	return types
}

// directory is one look at a configuration directory. What is read in it is read
// once, however many rules it is then held against.
type directory struct {
	path  string
	files []string
	read  map[string]content
}

// content is what was found at a path.
type content struct {
	data []byte
	info fs.FileInfo
	err  error
}

// openDirectory lists the files a runtime considers, in its order: that of the
// bytes of their names. Directories are none, symbolic links are, wherever they
// point.
func openDirectory(dir string) (*directory, error) {
	files, err := libcni.ConfFiles(dir, extensions())
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", dir, err)
	}
	if len(files) == 0 {
		if Removed(dir) {
			return nil, fmt.Errorf("%w in %s: it %w", ErrNoCandidate, dir, ErrRemoved)
		}
		return nil, fmt.Errorf("%w in %s", ErrNoCandidate, dir)
	}
	slices.Sort(files)
	return &directory{path: dir, files: files, read: map[string]content{}}, nil
}

// ErrRemoved says that a mount goes on showing a directory that is no more: a
// container sees the node's own only when it starts again.
var ErrRemoved = errors.New("was removed where it is mounted from; what took its place is seen when the container starts again")

// Removed reports whether no path leads to the directory any more, as [ErrRemoved]
// says.
func Removed(dir string) bool {
	info, err := os.Stat(dir)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 0
}

func (d *directory) content(path string) content {
	c, ok := d.read[path]
	if !ok {
		c.data, c.info, c.err = readRegular(path)
		d.read[path] = c
	}
	return c
}

// load returns what the runtime loads, and the files that it passes over for it,
// with the reason. An error says why it loads nothing, or nothing of use.
func (d *directory) load(o Options, l level) (*Active, []error, error) {
	if o.Runtime.Name == CRIO {
		return d.firstUsable(o, l)
	}
	// containerd takes the first file or nothing: go-cni's loadFromConfDir.
	active, err := d.file(d.files[0], l)
	if err == nil && o.Network != "" && active.Network != o.Network {
		err = fmt.Errorf("%s is loaded, network %q: %w, %q", active.Path, active.Network, errNetwork, o.Network)
	}
	return active, nil, err
}

// firstUsable is CRI-O's rule (loadNetworks of ocicni): what does not load, or
// names a plugin that cannot be run, is passed over, and so is every network but
// the one that is asked for.
func (d *directory) firstUsable(o Options, l level) (*Active, []error, error) {
	var passed []error
	for _, path := range d.files {
		active, err := d.file(path, l)
		if err == nil {
			err = active.usable(o.BinDir)
		}
		if err != nil {
			passed = append(passed, err)
			continue
		}
		if active.Network == "" {
			active.Network = filepath.Base(path)
		}
		if o.Network == "" || o.Network == active.Network {
			return active, passed, nil
		}
	}
	if len(passed) > 0 {
		return nil, passed, passed[0]
	}
	return nil, nil, fmt.Errorf("no file in %s is of network %q: %w", d.path, o.Network, errNetwork)
}

// usable reports why CRI-O would not use the list. It looks at binaries only
// where it is told their directory, and starts none.
func (a *Active) usable(binDir string) error {
	if !speaks(a.CNIVersion) {
		return fmt.Errorf("%s: %w %q", a.Path, errVersion, a.CNIVersion)
	}
	for _, pluginType := range a.Types() {
		if binDir == "" {
			break
		}
		if err := VerifyBinary(binDir, pluginType); err != nil {
			return fmt.Errorf("%s: %w", a.Path, err)
		}
	}
	return nil
}

// errVersion is followed by the version.
var errVersion = errors.New("no plugin is known to speak CNI version")

// speaks reports whether a chained plugin is called with a version that exists.
// None is the first one, in libcni's eyes.
func speaks(version string) bool {
	return version == "" || slices.Contains(cniversion.All.SupportedVersions(), version)
}

// file reads one file as libcni of the level does.
func (d *directory) file(path string, l level) (*Active, error) {
	c := d.content(path)
	if c.err != nil {
		return nil, fmt.Errorf("reading the CNI configuration: %w", c.err)
	}
	parse := parseList
	if filepath.Ext(path) != extensionList {
		parse = parseSingle
	}
	list, err := parse(c.data, l)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	active := &Active{
		Path: path, Single: filepath.Ext(path) != extensionList,
		Network: list.Name, CNIVersion: list.CNIVersion, Inline: list.Plugins, content: c,
	}
	if l >= libcni13 && !active.Single && !list.LoadOnlyInlinedPlugins {
		if active.DropIns, err = d.dropIns(list.Name); err != nil {
			return nil, fmt.Errorf("reading the plugins that belong to %s: %w", path, err)
		}
	}
	if len(active.Inline)+len(active.DropIns) == 0 {
		return nil, fmt.Errorf("reading %s: no plugins in list", path)
	}
	return active, nil
}

func (d *directory) dropIns(network string) ([]*libcni.PluginConfig, error) {
	dir := filepath.Join(d.path, network)
	files, err := libcni.ConfFiles(dir, []string{extensionDropIn})
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", dir, err)
	}
	var plugins []*libcni.PluginConfig
	for _, file := range files {
		c := d.content(file)
		if c.err != nil {
			return nil, c.err
		}
		plugin, err := libcni.NetworkPluginConfFromBytes(c.data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		plugins = append(plugins, plugin)
	}
	return plugins, nil
}

// taken reports whether a single plugin's file stands beside a list that a
// conversion of it would be named like.
func (d *directory) taken(single string) (string, bool) {
	list := strings.TrimSuffix(single, filepath.Ext(single)) + extensionList
	return list, slices.Contains(d.files, list)
}

// VerifyBinary reports why the runtime cannot run the plugin's binary.
func VerifyBinary(binDir, pluginType string) error {
	path := filepath.Join(binDir, pluginType)
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("looking for the plugin's binary: %w", err)
	}
	if err := onlyRegular(path, info); err != nil {
		return err
	}
	if info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not executable", path)
	}
	return nil
}
