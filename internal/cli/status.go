package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/report"
)

// What status and heartbeat exit with, for scripts.
const (
	codeArmed outcome = 3
	codeAmiss outcome = 4
)

// outcome ends a command that has done its work with an exit code that is its
// result.
type outcome int

// Error implements error.
func (o outcome) Error() string { return fmt.Sprintf("exit code %d", int(o)) }

type statusOptions struct {
	*options
	output
	rows     table
	selector string
	armed    bool
	watch    bool
}

func newStatusCommand(o *options) *cobra.Command {
	s := &statusOptions{options: o}
	command := &cobra.Command{
		Use:   "status",
		Short: "Show how the gates stand on all nodes",
		Long: `Show how the gates stand on all nodes that they govern: whether the node is armed or
open, what its heartbeat is worth and how old it is, which checks fail, and how its
agent's pod does. Below stand the totals of each gate, the mode, what arms, and what
is amiss: a guard that is not there, admission that is not as the configuration has
it, nodes that nothing will open.

It reads Nodes, the agents' pods and DaemonSets, and in nodegate-system the
configuration and the guard's Lease; and what nodegate has of admission. What you may
not read it says, and shows the rest.

Exit codes: 0 all governed nodes are open and nothing is amiss, 1 failed, 2 as 0, but
not all could be seen, 3 a node is armed, 4 no node is armed, but something is amiss.`,
		Example: `  kubectl nodegate status
  kubectl nodegate status --armed -o name
  kubectl nodegate status -l topology.kubernetes.io/zone=a --watch`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(command *cobra.Command, _ []string) error { return s.run(command.Context()) },
	}
	s.addTo(command, "wide", "name")
	command.Flags().StringVarP(&s.selector, "selector", "l", "", "show the nodes with these `labels` only")
	command.Flags().BoolVar(&s.armed, "armed", false, "show armed nodes only; totals are of all")
	command.Flags().BoolVarP(&s.watch, "watch", "w", false, "go on, and show what changes")
	return command
}

func (o *statusOptions) run(ctx context.Context) error {
	if _, err := o.printer(); err != nil {
		return err
	}
	selector, err := labels.Parse(o.selector)
	if err != nil {
		return fmt.Errorf("--selector: %w", err)
	}
	c, err := o.connect()
	if err != nil {
		return err
	}
	if o.watch {
		return o.follow(ctx, c, selector)
	}
	l := &look{connection: c, selector: selector}
	in, err := l.input(ctx)
	if err != nil {
		return err
	}
	status := report.NewStatus(in)
	if err := o.show(status); err != nil {
		return err
	}
	return result(status)
}

// result is what the command exits with.
func result(s *report.Status) error {
	for _, t := range s.Gates {
		if t.Armed > 0 {
			return codeArmed
		}
	}
	switch {
	case len(s.Findings) > 0:
		return codeAmiss
	case len(s.Unseen) > 0:
		return outcome(codeUnseen)
	}
	return nil
}

// show writes all of a status.
func (o *statusOptions) show(s *report.Status) error {
	o.sayUnseen(s.Unseen)
	if o.armed {
		s.Nodes = armedOnly(s.Nodes)
	}
	if done, err := o.print(s, o.Out); done || err != nil {
		return err
	}
	if o.format == "name" {
		o.names(s.Nodes)
		return nil
	}
	if len(s.Nodes) > 0 {
		rows := [][]cell{o.head()}
		for _, row := range s.Nodes {
			rows = append(rows, o.cells(row))
		}
		o.rows.write(o.options, rows)
		o.didf("")
	}
	o.totals(s)
	return nil
}

func armedOnly(rows []report.Row) []report.Row {
	armed := []report.Row{}
	for _, row := range rows {
		if row.State == report.Armed {
			armed = append(armed, row)
		}
	}
	return armed
}

// names writes each node once; its rows follow each other.
func (o *statusOptions) names(rows []report.Row) {
	last := ""
	for _, row := range rows {
		if row.Node != last {
			o.didf("node/%s", row.Node)
		}
		last = row.Node
	}
}

func (o *statusOptions) head() []cell {
	head := cells("NODE", "GATE", "STATE", "VERDICT", "HEARTBEAT", "FAILING", "AGENT")
	if o.format == "wide" {
		head = append(head, cells("POD", "TTL", "BOOT")...)
	}
	return append(head, cell{text: "NOTE"})
}

func (o *statusOptions) cells(row report.Row) []cell {
	shown := cells(row.Node, row.Gate, row.State, string(row.Verdict), heartbeatAge(row.Heartbeat), failing(row.Heartbeat), agentWord(row.Agent))
	shown[2].colour = green
	switch {
	case row.AgainstTheRules:
		shown[2].colour = red
	case row.State == report.Armed:
		shown[2].colour = yellow
	}
	if o.format == "wide" {
		pod, ttl, boot := "", "", ""
		if row.Agent != nil {
			pod = row.Agent.Pod
		}
		if row.Heartbeat != nil {
			ttl, boot = age(row.Heartbeat.TTLSeconds), row.Heartbeat.BootID
		}
		shown = append(shown, cells(pod, ttl, boot)...)
	}
	return append(shown, cell{text: note(row)})
}

func heartbeatAge(hb *report.Heartbeat) string {
	if hb == nil {
		return ""
	}
	return age(hb.AgeSeconds)
}

func failing(hb *report.Heartbeat) string {
	if hb == nil {
		return ""
	}
	return strings.Join(hb.Failing, ",")
}

// agentWord is one word on the agent of a node.
func agentWord(agent *report.Agent) string {
	switch {
	case agent == nil:
		return "?"
	case agent.Ready:
		return "Ready"
	case agent.Pod != "":
		return agent.Problem
	case agent.Belongs:
		return "Missing"
	}
	return "CannotRun"
}

// note is what the other columns do not say.
func note(row report.Row) string {
	switch {
	case row.State == report.Gone:
		return "not there any more, or not governed"
	case row.Bypass != nil:
		return fmt.Sprintf("bypassed until %s: %s", row.Bypass.Until.UTC().Format(gate.TimeLayout), row.Bypass.Reason)
	case row.AgainstTheRules:
		return "open against the rules"
	case row.State == report.Armed && row.Verdict == gate.Fresh && row.Agent != nil && !row.Agent.Ready:
		return "its agent is gone"
	case !row.Adopted:
		return "not adopted yet"
	}
	return ""
}

func (o *statusOptions) totals(s *report.Status) {
	rows := [][]cell{cells("GATE", "GOVERNED", "ARMED", "OPEN", "AGAINST-RULES", "NOT-ADOPTED", "NO-AGENT", "TAINT")}
	for _, t := range s.Gates {
		row := cells(t.Gate)
		for _, number := range []int{t.Governed, t.Armed, t.Open, t.AgainstTheRules, t.Unadopted, t.WithoutAgent} {
			row = append(row, cell{text: fmt.Sprint(number)})
		}
		rows = append(rows, append(row, cell{text: t.Taint}))
	}
	(&table{}).write(o.options, rows)
	o.didf("\n%s", installation(s.Installation, s.Time.Time))
	o.amiss(s.Findings)
}

func (o *options) amiss(findings []report.Finding) {
	for _, f := range findings {
		o.didf("\n%s %s\n    %s", o.paint(red, "Amiss:"), finding(f), f.Do)
	}
}

func finding(f report.Finding) string {
	if f.Gate == "" {
		return f.Message
	}
	return fmt.Sprintf("gate %s: %s", f.Gate, f.Message)
}

// installation is in one line what of nodegate is there.
func installation(i report.Installation, now time.Time) string {
	var parts []string
	if i.Mode != "" {
		parts = append(parts, "mode "+string(i.Mode))
	}
	switch i.Mutation {
	case report.MutationPolicy:
		parts = append(parts, "armed in admission by policies ("+i.MutationVersion+")")
	case report.MutationWebhook:
		parts = append(parts, "armed in admission by the webhook")
	case report.MutationBoth:
		parts = append(parts, "armed in admission by policies ("+i.MutationVersion+") and the webhook")
	case report.MutationNone:
		parts = append(parts, "nothing arms in admission")
	}
	if i.Guard != nil && i.Guard.Running {
		parts = append(parts, fmt.Sprintf("guarded by %s", i.Guard.Holder))
	} else if i.Guard != nil {
		parts = append(parts, "no guard runs")
	}
	if i.InstalledAt != nil {
		parts = append(parts, "installed "+age(int64(now.Sub(i.InstalledAt.Time).Seconds()))+" ago")
	}
	if len(parts) == 0 {
		return "Of the installation nothing was seen."
	}
	text := strings.Join(parts, "; ")
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// sayUnseen says what was not seen, to a person.
func (o *options) sayUnseen(unseen []report.Unseen) {
	for _, u := range unseen {
		o.sayf("Not seen: %s: %s", u.Part, u.Reason)
		if u.Part == report.PartConfiguration {
			o.sayf("    The default gate is assumed, and that it is enforced.")
		}
	}
}
