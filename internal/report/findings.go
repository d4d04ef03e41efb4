package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/remnant"
)

// FindingKind says what is amiss, for programs.
type FindingKind string

const (
	// GuardAbsent: no replica renews the Lease.
	GuardAbsent FindingKind = "GuardAbsent"
	// ModesDiffer: configuration, what admits and the guard are not in one mode.
	ModesDiffer FindingKind = "ModesDiffer"
	// AdmissionMissing: something that should admit is not there.
	AdmissionMissing FindingKind = "AdmissionMissing"
	// AdmissionDiffers: something that admits is not as the configuration has it.
	AdmissionDiffers FindingKind = "AdmissionDiffers"
	// AdmissionLeft: something that admits belongs to no gate that is configured.
	AdmissionLeft FindingKind = "AdmissionLeft"
	// WebhookUntrusted: the registration has no authority yet.
	WebhookUntrusted FindingKind = "WebhookUntrusted"
	// SilenceSuspended: nothing is armed for an agent's silence for now.
	SilenceSuspended FindingKind = "SilenceSuspended"
	// BreakerTripped: too many Nodes were armed for their agents' silence.
	BreakerTripped FindingKind = "BreakerTripped"
	// NoAgentDaemonSet: nothing creates a gate's agent pods.
	NoAgentDaemonSet FindingKind = "NoAgentDaemonSet"
	// ArmedWithoutAgent: Nodes are armed where no agent can run.
	ArmedWithoutAgent FindingKind = "ArmedWithoutAgent"
	// OpenAgainstTheRules: Nodes are open that should be armed, in the mode enforce.
	OpenAgainstTheRules FindingKind = "OpenAgainstTheRules"
	// TaintLeft: Nodes carry the taint of a gate that does not govern them, or is not
	// configured any more.
	TaintLeft FindingKind = "TaintLeft"
)

// Finding is something amiss that a person should look at.
type Finding struct {
	Kind    FindingKind `json:"kind"`
	Gate    string      `json:"gate,omitempty"`
	Message string      `json:"message"`
	// Do is what to do about it.
	Do string `json:"do"`
}

// findings are in the order in which a person should look at them.
func (x *index) findings(rows []Row) []Finding {
	found := slices.Concat(x.ofGuard(), x.ofAdmission())
	for i := range x.Config.Gates {
		found = append(found, x.ofGate(&x.Config.Gates[i], rows)...)
	}
	return slices.Concat(found, x.left(true), x.left(false))
}

const prune = "kubectl nodegate prune"

// left are the taints of gates that do not govern the Nodes which carry them: of gates
// that are configured, or of others.
func (x *index) left(configured bool) []Finding {
	if !x.saw(PartConfiguration) {
		return nil
	}
	why := "these carry the taint %s of a gate that is not configured any more, so that nothing opens them: %s"
	if configured {
		why = "these carry its taint %s, and it does not govern them, so that nothing opens them: %s"
	}
	known, nodes := remnant.Known{Config: x.Config, Retired: x.Retired}, map[remnant.Taint][]string{}
	for i := range x.Nodes {
		for _, taint := range known.On(&x.Nodes[i], x.Now).Taints {
			if configured == slices.ContainsFunc(x.Config.Gates, func(g gate.Gate) bool { return g.Taint.Key == taint.Key }) {
				nodes[taint] = append(nodes[taint], x.Nodes[i].Name)
			}
		}
	}
	var found []Finding
	for _, taint := range slices.SortedFunc(maps.Keys(nodes), func(a, b remnant.Taint) int { return cmp.Compare(a.Key, b.Key) }) {
		found = append(found, Finding{Kind: TaintLeft, Gate: taint.Gate, Message: fmt.Sprintf(why, taint.Key, some(nodes[taint])), Do: prune})
	}
	return found
}

const applyAgain = "kubectl nodegate upgrade; or apply again what kubectl nodegate render --config FILE --only admission writes"

func (x *index) ofGuard() []Finding {
	if !x.saw(PartLease) {
		return nil
	}
	guard := x.guard()
	if !guard.Running {
		message := "no guard has ever run"
		if guard.Renewed != nil {
			message = fmt.Sprintf("no guard runs: the last one, %s, was there until %s", orNobody(guard.Holder), stamp(guard.Renewed.Time))
		}
		return []Finding{{
			Kind: GuardAbsent, Message: message + "; no Node is armed for a new boot, for an agent's silence or absence, and nobody tells what happens",
			Do: fmt.Sprintf("kubectl -n %s get pods -l app.kubernetes.io/name=%s", gate.Namespace, gate.ControllerAccount),
		}}
	}
	var found []Finding
	if x.saw(PartConfiguration) && guard.Mode != "" && guard.Mode != x.Config.Mode {
		found = append(found, Finding{
			Kind: ModesDiffer, Message: fmt.Sprintf("the guard is in mode %s, the configuration says %s", guard.Mode, x.Config.Mode),
			Do: "wait for two minutes, in which a kubelet brings the guard's file up to date; then look at the controller's log",
		})
	}
	if s := guard.Suspended; s != nil {
		found = append(found, Finding{
			Kind: SilenceSuspended, Message: fmt.Sprintf("until %s no Node is armed for an agent's silence or absence: %s", stamp(s.Until.Time), s.Reason),
			Do: "nothing; it ends by itself",
		})
	}
	for _, b := range guard.Breakers {
		if b.Tripped {
			found = append(found, Finding{
				Kind: BreakerTripped, Gate: b.Gate,
				Message: fmt.Sprintf("%d Nodes were armed for their agents' silence within ten minutes, and at most %d may be; others wait", b.Armed, b.Limit),
				Do:      "find out what many agents have in common that fell silent: a roll, an image, the way to the API server",
			})
		}
	}
	return found
}

func orNobody(holder string) string {
	if holder == "" {
		return "which gave its Lease up"
	}
	return holder
}

func (x *index) ofAdmission() []Finding {
	if !x.saw(PartAdmission) || !x.saw(PartConfiguration) {
		return nil
	}
	d, err := compare(x.Config, x.Admission)
	if err != nil {
		return []Finding{{Kind: AdmissionDiffers, Message: "what admits cannot be compared with the configuration: " + err.Error(), Do: applyAgain}}
	}
	var found []Finding
	add := func(kind FindingKind, names []string, message, do string) {
		if len(names) > 0 {
			found = append(found, Finding{Kind: kind, Message: fmt.Sprintf(message, strings.Join(names, "; ")), Do: do})
		}
	}
	if form, _ := mutation(x.Admission); form == MutationNone {
		add(AdmissionMissing, []string{"neither policies nor a webhook"}, "nothing arms in admission: there are %s", applyAgain)
	} else if form == MutationBoth {
		add(AdmissionLeft, []string{"both"}, "policies and the webhook arm, %s, and one of them is enough", "kubectl nodegate upgrade --mutation policy, or webhook, which removes the other")
	}
	add(AdmissionMissing, d.missing, "what should admit is not there: %s", applyAgain)
	add(AdmissionDiffers, d.differing, "what admits is not what this version of the command renders from the configuration: %s", applyAgain)
	add(AdmissionLeft, d.removed, "what admits belongs to no gate of the configuration: %s", prune)
	wrong, is := d.idle, "enforce nothing"
	if x.Config.Mode != gate.ModeEnforce {
		wrong, is = d.enforcing, "enforce"
	}
	add(ModesDiffer, wrong, "the configuration says "+string(x.Config.Mode)+", and these "+is+": %s", "kubectl nodegate "+modeCommand(x.Config.Mode))
	add(WebhookUntrusted, d.uncertified, "no API server can call the webhook, for its registration has no caBundle: %s", "look at the controller's log, or at cert-manager's")
	return found
}

func modeCommand(mode gate.Mode) string {
	switch mode {
	case gate.ModePaused:
		return "pause"
	case gate.ModeObserve:
		return "observe"
	}
	return "resume"
}

func (x *index) ofGate(g *gate.Gate, rows []Row) []Finding {
	var stuck, against []string
	for _, row := range rows {
		if row.Gate != g.Name {
			continue
		}
		if row.State == Armed && row.Agent != nil && !row.Agent.Belongs {
			stuck = append(stuck, row.Node)
		}
		if row.AgainstTheRules {
			against = append(against, row.Node)
		}
	}
	var found []Finding
	add := func(kind FindingKind, names []string, message, do string) {
		if len(names) > 0 {
			found = append(found, Finding{Kind: kind, Gate: g.Name, Message: fmt.Sprintf(message, some(names)), Do: do})
		}
	}
	if x.saw(PartDaemonSets) && len(x.sets[g.Name]) == 0 {
		add(NoAgentDaemonSet, []string{g.Agent.Namespace}, "no DaemonSet in namespace %s creates its agent's pods: nothing opens Nodes, and none is armed for silence",
			"install the agent, or correct the gate's agent in the configuration")
	} else {
		add(ArmedWithoutAgent, stuck, "armed where no agent can run, so that nothing opens them: %s",
			"kubectl nodegate explain NODE; let the agent tolerate what keeps it away, or take the Node out of the gate's reach")
	}
	if x.Config.Mode == gate.ModeEnforce {
		add(OpenAgainstTheRules, against, "open against the rules: %s", "kubectl nodegate explain NODE")
	}
	return found
}

// some names the first few.
func some(names []string) string {
	const few = 5
	slices.Sort(names)
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
