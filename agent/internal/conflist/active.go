package conflist

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
)

const (
	extensionList   = ".conflist"
	extensionDropIn = ".conf"
)

// ErrNoCandidate says that the directory holds no CNI configuration at all, as
// before the cluster's network has been installed.
var ErrNoCandidate = errors.New("no CNI configuration")

// Active is the configuration that containerd loads from a directory.
type Active struct {
	// Path is the file's.
	Path string
	// Single marks a file of one plugin, not a list: nothing can be chained in it.
	Single bool
	// Network is the name of the network.
	Network string
	// Inline are the plugins in the file itself.
	Inline []*libcni.PluginConfig
	// DropIns are those which libcni 1.3 and newer append from the directory named
	// after the network; older ones do not look there.
	DropIns []*libcni.PluginConfig
}

// Load returns what containerd loads from the directory: its first candidate, or
// nothing. A first file that cannot be used is an error, for containerd does not
// go on to the second.
func Load(dir string) (*Active, error) {
	files, err := candidates(dir)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%w in %s", ErrNoCandidate, dir)
	}
	if filepath.Ext(files[0]) != extensionList {
		return &Active{Path: files[0], Single: true}, nil
	}
	return loadList(files[0])
}

// candidates are the files a runtime considers, in its order: that of the bytes
// of their names. Directories are none, symbolic links are, wherever they point.
func candidates(dir string) ([]string, error) {
	files, err := libcni.ConfFiles(dir, []string{".conf", extensionList, ".json"})
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", dir, err)
	}
	slices.Sort(files)
	return files, nil
}

func loadList(path string) (*Active, error) {
	data, err := readRegular(path)
	if err != nil {
		return nil, fmt.Errorf("reading the CNI configuration: %w", err)
	}
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	active := &Active{Path: path, Network: list.Name, Inline: list.Plugins}
	if !list.LoadOnlyInlinedPlugins {
		active.DropIns, err = dropIns(filepath.Join(filepath.Dir(path), list.Name))
		if err != nil {
			return nil, fmt.Errorf("reading the plugins that belong to %s: %w", path, err)
		}
	}
	if len(active.Inline)+len(active.DropIns) == 0 {
		return nil, fmt.Errorf("reading %s: no plugins in list", path)
	}
	return active, nil
}

func dropIns(dir string) ([]*libcni.PluginConfig, error) {
	files, err := libcni.ConfFiles(dir, []string{extensionDropIn})
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", dir, err)
	}
	var plugins []*libcni.PluginConfig
	for _, file := range files {
		data, err := readRegular(file)
		if err != nil {
			return nil, err
		}
		plugin, err := libcni.NetworkPluginConfFromBytes(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		plugins = append(plugins, plugin)
	}
	return plugins, nil
}
