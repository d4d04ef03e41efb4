package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/conflist"
)

func newInstallCNICommand() *cobra.Command {
	config, binary := defaultConfig, ""
	command := &cobra.Command{
		Use:   "install-cni",
		Short: "Install nodegate's own CNI plugin, for an agent that chains it",
		Long: `Install nodegate's own CNI plugin, for an agent that chains it.

The plugin nodegate-cni is copied into the directories of CNI binaries that the
configuration's conflist checks of it name, in one step, and its entry, as the
configuration's cni has it, is kept where the agent finds it. What is there already
is not written again, and no list is touched: the agent knows which one the node's
runtime loads.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if binary == "" {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("looking for this program: %w", err)
				}
				binary = filepath.Join(filepath.Dir(self), gate.CNIPlugin)
			}
			cfg, err := gate.LoadConfiguration(config)
			if err != nil {
				return err
			}
			return installCNI(cfg, binary)
		},
	}
	command.Flags().SortFlags = false
	command.Flags().StringVar(&config, "config", config, "configuration `file`")
	command.Flags().StringVar(&binary, "binary", binary, "`file` to install (default: nodegate-cni beside this program)")
	return command
}

func installCNI(cfg *gate.Configuration, binary string) error {
	found := false
	for _, g := range cfg.Gates {
		for _, check := range g.Checks {
			c := check.Conflist
			if c == nil || c.PluginType != gate.CNIPlugin {
				continue
			}
			found = true
			o := conflist.Options{Dir: c.Dir, BinDir: c.BinDir, Plugin: c.PluginType}
			in := conflist.Installation{Binary: binary, Entry: cfg.CNI.Entry(), EntryFile: c.EntryFile}
			if _, err := conflist.Install(o, in); err != nil {
				return err
			}
		}
	}
	if !found {
		return errors.New("there is nothing to install: no conflist check of the configuration is of " + gate.CNIPlugin)
	}
	return nil
}
