//go:build unix

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/test/world"
)

// narrator tells people what happens.
type narrator struct {
	out     io.Writer
	colours bool
	began   time.Time
	step    int
	// shown is the last state that was told.
	shown string
	rows  []row
}

// row is a line of the table of measured times.
type row struct {
	step int
	what string
	took time.Duration
}

func newNarrator(out *os.File) *narrator {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return &narrator{
		out: out, began: time.Now(),
		colours: terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
	}
}

const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
)

func (n *narrator) colour(code, text string) string {
	if !n.colours {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (n *narrator) line(at time.Time, text string) {
	fmt.Fprintf(n.out, "%s  %s\n", n.colour(dim, fmt.Sprintf("%8.3fs", at.Sub(n.began).Seconds())), text)
}

// progress tells what is being done before the story begins.
func (n *narrator) progress(what string) { n.line(time.Now(), what) }

// begin opens a step.
func (n *narrator) begin(title string) {
	n.step++
	fmt.Fprintf(n.out, "\n%s\n", n.colour(bold, fmt.Sprintf("%d. %s", n.step, title)))
}

// does tells what is done to the node.
func (n *narrator) does(what string) { n.line(time.Now(), "> "+what) }

// says quotes a program.
func (n *narrator) says(who, what string) { n.line(time.Now(), who+": "+strings.TrimSpace(what)) }

// shows tells the states that a watch has shown, those that look alike once.
func (n *narrator) shows(g *gate.Gate, states []world.Seen) {
	for _, state := range states {
		looks := describe(g, state.Node)
		if looks == n.shown {
			continue
		}
		n.shown = looks
		mark := n.colour(green, "open ")
		if g.Armed(state.Node) {
			mark = n.colour(red, "armed")
		}
		n.line(state.At, "  "+mark+"  "+looks)
	}
}

// describe is a Node's state in one line.
func describe(g *gate.Gate, node *corev1.Node) string {
	var taints []string
	for _, taint := range node.Spec.Taints {
		taints = append(taints, strings.TrimPrefix(taint.Key, "node.kubernetes.io/")+":"+string(taint.Effect))
	}
	boot, heartbeat := "-", "none"
	if id := node.Status.NodeInfo.BootID; id != "" {
		boot = short(id)
	}
	if value, ok := node.Annotations[g.HeartbeatAnnotation()]; ok {
		heartbeat = "malformed"
		if hb, err := gate.ParseHeartbeat(value); err == nil {
			heartbeat = describeHeartbeat(hb)
		}
	}
	return fmt.Sprintf("boot=%s heartbeat=(%s) taints=[%s]", boot, heartbeat, strings.Join(taints, " "))
}

func describeHeartbeat(hb gate.Heartbeat) string {
	parts := []string{fmt.Sprintf("ready=%t", hb.Ready), "boot=" + short(hb.BootID)}
	for _, token := range hb.Extra {
		if token.Key == gate.TokenFailing {
			parts = append(parts, "failing="+token.Value)
		}
	}
	return strings.Join(parts, " ")
}

func short(id string) string { return id[:min(8, len(id))] }

// measured notes a time for the table.
func (n *narrator) measured(what string, took time.Duration) {
	n.rows = append(n.rows, row{n.step, what, took})
}

// holds tells what the step has shown.
func (n *narrator) holds(what string) { n.line(time.Now(), n.colour(green, "= "+what)) }

// table tells what was measured.
func (n *narrator) table() {
	fmt.Fprintf(n.out, "\n%s\n", n.colour(bold, "Measured"))
	table := tabwriter.NewWriter(n.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range n.rows {
		fmt.Fprintf(table, "%d\t%.3f s\t  %s\n", row.step, row.took.Seconds(), row.what)
	}
	_ = table.Flush()
	fmt.Fprintf(n.out, "\n%s\n", n.colour(green, fmt.Sprintf("Every step was as it says, in %.0f s.", time.Since(n.began).Seconds())))
}

// logs tells the ends of the logs, after a failure.
func (n *narrator) logs(logs map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		fmt.Fprintf(n.out, "\n%s\n%s\n", n.colour(bold, "End of "+name), logs[name])
	}
}
