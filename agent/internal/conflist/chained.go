package conflist

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
)

// Verify reports why the plugin does not run for every pod, exactly once and
// behind the main plugin, with the configuration that containerd loads from the
// directory; nil if it does.
func Verify(dir, pluginType string) error {
	active, err := Load(dir)
	if err != nil {
		return err
	}
	if err := active.chains(pluginType); err != nil {
		return err
	}
	return active.delegates(pluginType)
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

// chains holds for every version of libcni that loads the file: those before 1.3
// run the inline plugins alone and load no file without any.
func (a *Active) chains(pluginType string) error {
	if a.Single {
		return fmt.Errorf("%s is loaded, a single plugin and no list: nothing is chained in it", a.Path)
	}
	if len(a.Inline) > 0 && len(a.DropIns) > 0 {
		if err := chainedOnce(a.Inline, pluginType); err != nil {
			return fmt.Errorf("%s, as runtimes read it that ignore %s: %w", a.Path, a.Network, err)
		}
	}
	if err := chainedOnce(slices.Concat(a.Inline, a.DropIns), pluginType); err != nil {
		return fmt.Errorf("%s: %w", a.Path, err)
	}
	return nil
}

func chainedOnce(plugins []*libcni.PluginConfig, pluginType string) error {
	switch count := count(plugins, pluginType); {
	case count == 0:
		return fmt.Errorf("plugin %q is not in the list", pluginType)
	case count > 1:
		return fmt.Errorf("plugin %q is in the list %d times", pluginType, count)
	case len(plugins) == 1:
		return fmt.Errorf("plugin %q is alone in the list, without a main plugin", pluginType)
	case plugins[0].Network.Type == pluginType:
		return fmt.Errorf("plugin %q is first in the list, before the main plugin", pluginType)
	}
	return nil
}

func count(plugins []*libcni.PluginConfig, pluginType string) int {
	n := 0
	for _, plugin := range plugins {
		if plugin.Network.Type == pluginType {
			n++
		}
	}
	return n
}

// delegates reports whether a main plugin that runs further configurations may
// run the chained plugin a second time.
func (a *Active) delegates(pluginType string) error {
	main := slices.Concat(a.Inline, a.DropIns)[0]
	if !isDelegator(main.Network.Type) {
		return nil
	}
	if mentions(main.Bytes, pluginType) {
		return fmt.Errorf("%s: plugin %q is in the list and in what %q delegates to", a.Path, pluginType, main.Network.Type)
	}
	files, err := candidates(filepath.Dir(a.Path))
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := readRegular(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("reading what %q may delegate to: %w", main.Network.Type, err)
		}
		if file != a.Path && mentions(data, pluginType) {
			return fmt.Errorf("%s: plugin %q is in the list and in %s, to which %q may delegate",
				a.Path, pluginType, file, main.Network.Type)
		}
	}
	return nil
}
