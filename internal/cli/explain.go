package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodegate/nodegate/internal/report"
)

type explainOptions struct {
	*options
	output
}

func newExplainCommand(o *options) *cobra.Command {
	e := &explainOptions{options: o}
	command := &cobra.Command{
		Use:   "explain NODE",
		Short: "Explain why a node is armed or open, and what to do next",
		Long: `Explain why a node is armed or open: the rules in their order and what each has seen,
what happened and who did it, as the guard tells it in its Events, and what to do
next. managedFields are shown as a hint: they name the wrong one where admission has
changed what somebody else wrote.

It reads this one Node, the agent's pod on it and its Events; the agents' DaemonSets,
the configuration, the guard's Lease, and what nodegate has of admission. What you may
not read it says.

Exit codes: 0 done, 1 failed, 2 done, but not all could be seen.`,
		Example:           `  kubectl nodegate explain node-1`,
		Args:              oneNode,
		ValidArgsFunction: o.completeNode,
		RunE:              func(command *cobra.Command, args []string) error { return e.run(command.Context(), args[0]) },
	}
	e.addTo(command)
	return command
}

func (o *explainOptions) run(ctx context.Context, arg string) error {
	l, err := o.lookAt(arg, &o.output)
	if err != nil {
		return err
	}
	in, err := l.input(ctx)
	if err != nil {
		return err
	}
	explanation := report.Explain(in)
	o.sayUnseen(explanation.Unseen)
	if done, err := o.print(explanation, o.Out); err != nil {
		return err
	} else if !done {
		o.show(explanation)
	}
	if len(explanation.Unseen) > 0 {
		return outcome(codeUnseen)
	}
	return nil
}

func (o *explainOptions) show(e *report.Explanation) {
	o.didf("Node %s, boot %s, created %s ago.", e.Node, orNone(e.BootID), age(int64(e.Time.Sub(e.Created.Time).Seconds())))
	o.didf("%s", installation(e.Installation, e.Time.Time))
	for i := range e.Gates {
		o.gate(e, &e.Gates[i])
	}
	o.amiss(e.Findings)
}

func orNone(text string) string {
	if text == "" {
		return "(none shown)"
	}
	return text
}

func (o *explainOptions) gate(e *report.Explanation, g *report.Explained) {
	state, colour := g.State, green
	switch {
	case !g.Governed:
		state, colour = "not governed", ""
	case g.Row.AgainstTheRules:
		colour = red
	case g.State == report.Armed:
		colour = yellow
	}
	o.didf("\nGate %s: %s", g.Gate, o.paint(colour, state))
	for _, line := range wrap(g.Why) {
		o.didf("  %s", line)
	}
	if len(g.Rules) > 0 {
		o.didf("\n  The rules, in their order; the first that holds decides:")
		var rows [][]cell
		for _, rule := range g.Rules {
			rows = append(rows, cells("    "+string(rule.Verdict), rule.Outcome, rule.Seen))
		}
		(&table{}).write(o.options, rows)
	}
	if g.Row != nil && g.Row.Agent != nil {
		o.didf("\n  The agent: %s.", agentSentence(g.Row.Agent))
	}
	o.happened(e, g)
	if len(g.Next) > 0 {
		o.didf("\n  What to do:")
	}
	for i, step := range g.Next {
		for j, line := range wrap(step.Why) {
			mark := "  "
			if j == 0 {
				mark = fmt.Sprintf("%d.", i+1)
			}
			o.didf("    %s %s", mark, line)
		}
		if step.Command != "" {
			o.didf("         %s", step.Command)
		}
	}
}

func agentSentence(agent *report.Agent) string {
	switch {
	case agent.Ready:
		return "pod " + agent.Pod + " is Ready"
	case agent.Pod != "":
		return "pod " + agent.Pod + " is not Ready: " + agent.Problem
	case agent.Belongs:
		return "there should be a pod, and there is none"
	}
	return "no DaemonSet can run a pod there"
}

// happened tells what the guard has told, as it is kept for an hour mostly.
func (o *explainOptions) happened(e *report.Explanation, g *report.Explained) {
	const most = 10
	if len(g.Events) > 0 {
		o.didf("\n  What happened, by the guard's Events, the latest first:")
	} else if g.Governed && !slices.ContainsFunc(e.Unseen, func(u report.Unseen) bool { return u.Part == report.PartEvents }) {
		o.didf("\n  What happened: the guard's Events tell nothing. They are kept for an hour, as a rule.")
	}
	var rows [][]cell
	for _, event := range g.Events[:min(most, len(g.Events))] {
		times := ""
		if event.Count > 1 {
			times = fmt.Sprintf(" (%d times)", event.Count)
		}
		rows = append(rows, cells("    "+age(int64(e.Time.Sub(event.Time.Time).Seconds()))+" ago", event.Reason, event.Message+times))
	}
	(&table{}).write(o.options, rows)
	if g.Hint != "" {
		o.didf("  A hint:")
		for _, line := range wrap(g.Hint) {
			o.didf("    %s", line)
		}
	}
}

// wrap breaks a text into lines that a person reads with ease.
func wrap(text string) []string {
	const width = 90
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
