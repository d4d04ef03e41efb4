package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/conflist"
)

// errNotChained ends the program with a code of its own, and without a word: why
// has been said.
var errNotChained = errors.New("the plugin is not chained")

// Formats of a report.
const (
	outputText = "text"
	outputJSON = "json"
)

// where says what directory is looked at, and with whose eyes.
type where struct {
	dir        string
	binDir     string
	pluginType string
	runtime    string
	network    string
}

func (w *where) addFlags(flags *pflag.FlagSet, binDir, binDirUsage string) {
	flags.SortFlags = false
	flags.StringVar(&w.dir, "dir", gate.DefaultNetDir, "the runtime's CNI configuration `directory`")
	flags.StringVar(&w.binDir, "bin-dir", binDir, binDirUsage)
	flags.StringVar(&w.pluginType, "plugin-type", "", "`type` of the chained plugin (required)")
	flags.StringVar(&w.runtime, "runtime", conflist.Containerd, "the node's `runtime`: containerd or cri-o, with its version if known, as in containerd://1.7.27")
	flags.StringVar(&w.network, "network", "", "`name` of the cluster's network, where the runtime is told it or it is a container tool's")
}

func (w *where) options() (conflist.Options, error) {
	o := conflist.Options{Dir: w.dir, BinDir: w.binDir, Plugin: w.pluginType, Network: w.network, First: w.pluginType == gate.CNIPlugin}
	switch {
	case w.pluginType == "":
		return o, errors.New("--plugin-type is missing: the type of the chained plugin, which is its binary's name")
	case w.pluginType != filepath.Base(w.pluginType) || w.pluginType == "." || w.pluginType == "..":
		return o, fmt.Errorf("--plugin-type is %q, a path: it is the name of the plugin's binary", w.pluginType)
	}
	if w.dir == "" {
		return o, errors.New("--dir is empty")
	}
	var err error
	if o.Runtime, err = conflist.ParseRuntime(w.runtime); err != nil {
		return o, fmt.Errorf("--runtime: %w", err)
	}
	return o, nil
}

func newConflistCommand() *cobra.Command {
	var at where
	var entry, output string
	var repair bool
	command := &cobra.Command{
		Use:   "conflist",
		Short: "Show which CNI configuration the runtime loads, and whether the plugin is chained in it",
		Long: `Show which CNI configuration the runtime loads, and whether the plugin is chained in it.

The verdict is one word: ok (chained, once, behind the main plugin); append,
dedupe, move, update (--repair does it); convert (a single plugin's file is
loaded; "chain --convert" makes a list); wait (nothing can be done yet); refuse
(nothing can be done by a program); indirect (another CNI runs the plugins);
version (it depends on the runtime's version: give it).

The exit code is 0 if the plugin is chained, 2 if it is not, 1 if that or the
repair could not be done.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if output != outputText && output != outputJSON {
				return fmt.Errorf("--output is %q, neither %s nor %s", output, outputText, outputJSON)
			}
			o, err := at.options()
			if err != nil {
				return err
			}
			known, fault := knownEntry(o, entry)
			r := conflist.Read(o, known)
			if fault == nil && repair && r.Repairable() {
				fault = mend(o, r, known)
				r = conflist.Read(o, known)
			}
			if err := show(command.OutOrStdout(), output, o, r); err != nil || fault != nil {
				return errors.Join(fault, err)
			}
			if r.Verdict != conflist.OK {
				return errNotChained
			}
			return nil
		},
	}
	at.addFlags(command.Flags(), "", "`directory` of CNI binaries (default: they are taken to be there)")
	command.Flags().StringVar(&entry, "entry", "", "`file` with the entry that belongs into the list, one JSON object (default: the one that chain has kept in the directory, if any)")
	command.Flags().BoolVar(&repair, "repair", false, "change the list once, if the verdict is append, dedupe, move or update")
	command.Flags().StringVarP(&output, "output", "o", outputText, "`format`: text or json")
	return command
}

// knownEntry is the one in the file, or else the one that chain has kept, if any.
func knownEntry(o conflist.Options, file string) (known conflist.Known, err error) {
	known.Durable, known.DurableAt, err = conflist.ReadEntry(cmp.Or(file, gate.DefaultEntryFile(o.Dir, o.Plugin)), o.Plugin)
	if file == "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) {
		err = nil
	}
	return known, err
}

func mend(o conflist.Options, r conflist.Reading, known conflist.Known) error {
	err := conflist.Mend(o, r, known)
	if errors.Is(err, conflist.ErrNoEntry) {
		return fmt.Errorf("%w: give --entry, or let \"nodegate-agent chain\" keep one in %s", err, gate.DefaultEntryFile(o.Dir, o.Plugin))
	}
	return err
}

// report is what is shown of a reading.
type report struct {
	Runtime string           `json:"runtime"`
	Active  *string          `json:"active"`
	Network string           `json:"network"`
	Plugins []string         `json:"plugins"`
	Entries int              `json:"entries"`
	Verdict conflist.Verdict `json:"verdict"`
	Reason  string           `json:"reason"`
	// Passed are the files that the runtime passes over, and why.
	Passed []string `json:"passed,omitempty"`
}

func newReport(o conflist.Options, r conflist.Reading) report {
	shown := report{Runtime: o.Runtime.String(), Plugins: []string{}, Verdict: r.Verdict}
	if r.Active != nil {
		name := filepath.Base(r.Active.Path)
		shown.Active, shown.Network, shown.Plugins = &name, r.Active.Network, r.Active.Types()
		for _, name := range shown.Plugins {
			if name == o.Plugin {
				shown.Entries++
			}
		}
	}
	if r.Reason != nil {
		shown.Reason = r.Reason.Error()
	}
	for _, passed := range r.Passed {
		shown.Passed = append(shown.Passed, passed.Error())
	}
	return shown
}

func show(to io.Writer, output string, o conflist.Options, r conflist.Reading) error {
	shown := newReport(o, r)
	if output == outputJSON {
		encoder := json.NewEncoder(to)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(shown)
	}
	active := "nothing"
	if shown.Active != nil {
		active = *shown.Active
	}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"runtime", shown.Runtime}, {"active", active}, {"network", shown.Network},
		{"plugins", strings.Join(shown.Plugins, ", ")}, {"entries", fmt.Sprint(shown.Entries)},
		{"verdict", string(shown.Verdict)}, {"reason", shown.Reason}, {"passed", strings.Join(shown.Passed, "; ")},
	} {
		if line[1] != "" {
			fmt.Fprintf(table, "%s:\t%s\n", line[0], line[1])
		}
	}
	return table.Flush()
}

func newChainCommand() *cobra.Command {
	var at where
	var in conflist.Installation
	var entry string
	command := &cobra.Command{
		Use:   "chain",
		Short: "Install the plugin's binary and its entry, and chain it, as an init container does",
		Long: `Install the plugin's binary and its entry, and chain it, as an init container does.

The binary comes first, if one is given: it must be there before anything names
it. Then the entry is kept in a file that no runtime reads, where agents find
it. Then it is put into the list that the runtime loads. What is there already
is not written again.

If there is no list yet, or none that can be changed, that is said and is no
error: the agent goes on from here, and reports it for as long as it lasts. A
file of a single plugin becomes a list only with --convert; it stays where it is,
and the list has its name with "-nodegate.conflist" at the end.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			o, err := at.options()
			if err != nil {
				return err
			}
			if entry != "" {
				if in.Entry, err = os.ReadFile(entry); err != nil {
					return fmt.Errorf("reading --entry: %w", err)
				}
			}
			in.EntryFile = cmp.Or(in.EntryFile, gate.DefaultEntryFile(o.Dir, o.Plugin))
			if err := complete(o, in); err != nil {
				return err
			}
			r, err := conflist.Chain(o, in)
			if err != nil {
				return err
			}
			return show(command.OutOrStdout(), outputText, o, r)
		},
	}
	at.addFlags(command.Flags(), gate.DefaultBinDir, "`directory` of CNI binaries")
	command.Flags().StringVar(&entry, "entry", "", "`file` with the entry, one JSON object (default: the one that is kept)")
	command.Flags().StringVar(&in.EntryFile, "entry-file", "", entryFileUsage)
	command.Flags().StringVar(&in.Binary, "binary", "", "`file` to install as the plugin's binary (default: it is in --bin-dir)")
	command.Flags().BoolVar(&in.Convert, "convert", false, "make a list of a single plugin's file")
	return command
}

var errNoBinDir = errors.New("--bin-dir is empty")

// complete says what to give where something to install is neither given nor there.
func complete(o conflist.Options, in conflist.Installation) error {
	if o.BinDir == "" {
		return errNoBinDir
	}
	if in.Binary == "" {
		if err := conflist.VerifyBinary(o.BinDir, o.Plugin); err != nil {
			return fmt.Errorf("install it before, or give it as --binary: %w", err)
		}
	}
	if len(in.Entry) == 0 {
		if _, _, err := conflist.ReadEntry(in.EntryFile, o.Plugin); err != nil {
			return fmt.Errorf("no entry of use was kept, give one as --entry: %w", err)
		}
	}
	return nil
}

const entryFileUsage = "`file` in which the entry is kept (default: .TYPE-entry in the directory)"

func newUnchainCommand() *cobra.Command {
	var at where
	var entryFile string
	var removeBinary, stay bool
	command := &cobra.Command{
		Use:   "unchain",
		Short: "Take the plugin out of all lists, the reverse of chain",
		Long: `Take the plugin out of all lists, the reverse of chain.

The kept entry goes first, then those in the lists, and the binary last, if that
is asked for and nothing names it any more. An agent that still runs would put
the entry back: switch its conflist check off before, or remove it. Pods that
were started with the plugin are deleted with it: let its binary stay for as
long as there are any.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			o, err := at.options()
			if err != nil {
				return err
			}
			if removeBinary && o.BinDir == "" {
				return errNoBinDir
			}
			if err := conflist.Unchain(o, cmp.Or(entryFile, gate.DefaultEntryFile(o.Dir, o.Plugin)), removeBinary); err != nil {
				return err
			}
			if stay {
				<-command.Context().Done()
			}
			return nil
		},
	}
	flags := command.Flags()
	flags.SortFlags = false
	at.runtime = conflist.Containerd // all lists are changed, whoever loads them
	flags.StringVar(&at.dir, "dir", gate.DefaultNetDir, "the runtime's CNI configuration `directory`")
	flags.StringVar(&at.binDir, "bin-dir", gate.DefaultBinDir, "`directory` of CNI binaries")
	flags.StringVar(&at.pluginType, "plugin-type", "", "`type` of the chained plugin (required)")
	flags.StringVar(&entryFile, "entry-file", "", entryFileUsage)
	flags.BoolVar(&removeBinary, "remove-binary", false, "remove the plugin's binary as well")
	flags.BoolVar(&stay, "stay", false, "when it is done, wait to be ended, as the container of a DaemonSet must")
	return command
}
