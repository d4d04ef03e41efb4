package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/report"
)

type heartbeatOptions struct {
	*options
	output
}

func newHeartbeatCommand(o *options) *cobra.Command {
	h := &heartbeatOptions{options: o}
	command := &cobra.Command{
		Use:   "heartbeat NODE",
		Short: "Decode a node's heartbeats and judge them",
		Long: `Decode a node's heartbeats and judge them, by the clock of this cluster's API server.

The right to get Nodes is enough. The configuration says which gates govern the node;
who may not read it sees the default gate's heartbeat, and what others there are.

Exit codes: 0 every one is worth opening for, 1 failed, 3 one is not.`,
		Example:           `  kubectl nodegate heartbeat node-1`,
		Args:              oneNode,
		ValidArgsFunction: o.completeNode,
		RunE:              func(command *cobra.Command, args []string) error { return h.run(command.Context(), args[0]) },
	}
	h.addTo(command)
	return command
}

func (o *heartbeatOptions) run(ctx context.Context, arg string) error {
	l, err := o.lookAt(arg, &o.output)
	if err != nil {
		return err
	}
	in, err := l.nodeAlone(ctx)
	if err != nil {
		return err
	}
	heartbeats := report.NewHeartbeats(in)
	o.sayUnseen(heartbeats.Unseen)
	done, err := o.print(heartbeats, o.Out)
	if err != nil {
		return err
	}
	if !done {
		o.show(heartbeats)
	}
	for _, j := range heartbeats.Heartbeats {
		if !j.Verdict.Opens() {
			return codeArmed
		}
	}
	return nil
}

func (o *heartbeatOptions) show(h *report.Heartbeats) {
	if len(h.Heartbeats) == 0 {
		o.sayf("Node %s carries no heartbeat, and no gate governs it", h.Node)
	}
	for i, j := range h.Heartbeats {
		if i > 0 {
			o.didf("")
		}
		(&table{}).write(o.options, o.decoded(h, &j))
	}
}

// decoded is one heartbeat, a line for each part of it and what must be true of it.
func (o *heartbeatOptions) decoded(h *report.Heartbeats, j *report.Judged) [][]cell {
	rows := [][]cell{cells("gate", j.Gate)}
	add := func(name, text string) { rows = append(rows, cells(name, text)) }
	if hb := j.Heartbeat; hb != nil {
		ready := fmt.Sprint(hb.Ready)
		if len(hb.Failing) > 0 {
			ready += ", failing: " + strings.Join(hb.Failing, ", ")
		}
		add("ready", ready)
		add("time", fmt.Sprintf("%s (%s; it is %s)", hb.Time.UTC().Format(gate.TimeLayout), ago(hb.AgeSeconds), h.Time.UTC().Format(gate.TimeLayout)))
		add("ttl", fmt.Sprintf("%ds: good until %s", hb.TTLSeconds, j.GoodUntil.UTC().Format(gate.TimeLayout)))
		add("boot", compared(hb.BootID, h.BootID))
		add("node", compared(hb.NodeUID, h.UID))
		if hb.PodUID != "" {
			add("pod", hb.PodUID)
		}
		if hb.Sequence != "" {
			add("number", hb.Sequence)
		}
	} else if j.Fault != "" {
		add("fault", j.Fault)
	}
	colour := red
	if j.Verdict.Opens() {
		colour = green
	}
	return append(rows, []cell{{text: "verdict"}, {text: string(j.Verdict) + ": " + j.Meaning, colour: colour}})
}

func compared(says, is string) string {
	switch {
	case is == "":
		return says + " (the Node shows none)"
	case says != is:
		return says + " (the Node's is " + is + ")"
	}
	return says + " (the Node's)"
}

// ago says how long ago or ahead something is.
func ago(seconds int64) string {
	if seconds < 0 {
		return age(seconds)
	}
	return age(seconds) + " ago"
}
