package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// output is how a result is written: as text, or in one of kubectl's forms.
type output struct {
	format string
	// texts are the forms that are text, besides the usual one.
	texts []string
	flags *genericclioptions.PrintFlags
	// made is the printer, which separates YAML documents.
	made printers.ResourcePrinter
}

func (o *output) addTo(command *cobra.Command, texts ...string) {
	o.texts = texts
	o.flags = genericclioptions.NewPrintFlags("")
	o.flags.OutputFormat = &o.format
	command.Flags().StringVarP(&o.format, "output", "o", "", "one of: "+o.forms())
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(append(slices.Clone(texts), "json", "yaml"), cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// printer is one for structured forms; nil for text.
func (o *output) printer() (printers.ResourcePrinter, error) {
	if o.made != nil || o.format == "" || slices.Contains(o.texts, o.format) {
		return o.made, nil
	}
	made, err := o.flags.ToPrinter()
	if o.format == "name" || genericclioptions.IsNoCompatiblePrinterError(err) {
		return nil, fmt.Errorf("-o is %q, it must be one of %s", o.format, o.forms())
	}
	o.made = made
	return made, err
}

func (o *output) forms() string {
	return strings.Join(append(slices.Clone(o.texts), "json", "yaml", "jsonpath=…", "go-template=…"), ", ")
}

// print writes an object in a structured form, if that is asked for.
func (o *output) print(object runtime.Object, to io.Writer) (done bool, err error) {
	p, err := o.printer()
	if p == nil {
		return false, err
	}
	return true, p.PrintObj(object, to)
}

// Colours of ANSI terminals.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
)

// painted is text that controls a terminal, and may.
type painted string

// paint colours text if it is for a terminal.
func (o *options) paint(colour, text string) painted {
	text = printable(text)
	if colour == "" || !printers.AllowsColorOutput(o.Out) {
		return painted(text)
	}
	return painted("\x1b[" + colour + "m" + text + "\x1b[0m")
}

// lines is text of several lines, which a line may hold.
type lines string

// writef writes a line. What is put into it makes no lines of its own, and cannot
// reach a terminal's controls: much of it comes from a cluster, where kubelets and
// others write what they like.
func writef(to io.Writer, format string, args []any) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			args[i] = printable(arg)
		case lines:
			args[i] = printableLines(string(arg))
		case error:
			args[i] = printable(arg.Error())
		}
	}
	fmt.Fprintf(to, format+"\n", args...)
}

// printable shows what is no visible character or space as Go spells it.
func printable(text string) string {
	var shown strings.Builder
	for _, r := range text {
		if strconv.IsPrint(r) {
			shown.WriteRune(r)
		} else {
			shown.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return shown.String()
}

// printableLines is the same for a text of several lines.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// cell is one of a table.
type cell struct{ text, colour string }

func cells(texts ...string) []cell {
	row := make([]cell, len(texts))
	for i, text := range texts {
		row[i].text = text
	}
	return row
}

// table is written in columns, which stay as wide as they once were.
type table struct{ widths []int }

// write writes rows. What comes from a cluster cannot reach the terminal's controls,
// as with [writef]. The last column may be empty.
func (t *table) write(o *options, rows [][]cell) {
	const gap = "   "
	for _, row := range rows {
		for i := range row {
			row[i].text = printable(row[i].text)
			if row[i].text == "" && i < len(row)-1 {
				row[i].text = "-"
			}
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i].text))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, c := range row {
			line.WriteString(string(o.paint(c.colour, c.text)))
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(c.text)) + gap)
			}
		}
		fmt.Fprintln(o.Out, strings.TrimRight(line.String(), " "))
	}
}

// age says how long ago something was, as kubectl does.
func age(seconds int64) string {
	if seconds < 0 {
		return "in " + duration.HumanDuration(time.Duration(-seconds)*time.Second)
	}
	return duration.HumanDuration(time.Duration(seconds) * time.Second)
}
