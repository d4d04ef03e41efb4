package cases

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodegate/nodegate/gate"
)

// Table returns every row. Rows that Kubernetes or a foreign policy decide say
// so; the rest is decided by the gate alone.
func Table() []Case {
	var table []Case
	for _, part := range [][]Case{
		creation(), removal(), opening(), evidence(), malformed(), boundaries(), stamps(), lists(),
		adoption(), kubelets(), twoGates(), bypasses(), heartbeatWriters(), bypassWriters(), confinement(),
		foreignMutators(), modes(),
	} {
		table = append(table, part...)
	}
	return table
}

var stale = edits(armed, beat(age(10*time.Minute)))

func creation() []Case {
	return []Case{
		{ID: "create-plain", Must: "A governed Node MUST be born armed, without any flag of its kubelet.",
			As: Admin, Verb: Create, Sent: edits(), Want: Armed},
		{ID: "create-kubelet", Must: "A Node that its kubelet creates, with NodeRestriction on, MUST be born armed.",
			As: Kubelet, Verb: Create, Sent: edits(), Want: Armed},
		{ID: "create-armed", Must: "A Node that is registered with the taint MUST keep it once.",
			As: Kubelet, Verb: Create, Sent: armed, Want: Untouched},
		{ID: "create-foreign-taints", Must: "Foreign taints of a new Node MUST stay, in order, before the gate's.",
			As: Admin, Verb: Create, Sent: edits(foreign("example.com/a"), foreign("example.com/b")), Want: Armed},
		{ID: "create-other-effect", Must: "The gate's key under another effect MUST NOT count as the gate's taint.",
			As: Admin, Verb: Create, Sent: taint(gate.DefaultTaintKey, "", corev1.TaintEffectNoExecute), Want: Armed},
		{ID: "create-other-value", Must: "The gate's taint with another value MUST count, and stay as it is.",
			As: Admin, Verb: Create, Sent: taint(gate.DefaultTaintKey, "mine", corev1.TaintEffectNoSchedule), Want: Untouched},
		{ID: "create-empty-list", Must: "A new Node with an empty list of taints MUST be armed.",
			As: Admin, Verb: Create, Sent: emptyTaints, Want: Armed},
		{ID: "create-300-taints", Must: "A new Node with 300 taints MUST be armed.",
			As: Admin, Verb: Create, Sent: manyTaints(300), Want: Armed},
		{ID: "create-heartbeat-void", Must: "A heartbeat that comes with CREATE MUST be void, and not refused.",
			As: Editor, Verb: Create, Sent: edits(beat(ofNode(otherUID))), Want: Armed},
		{ID: "create-exempt", Must: "A Node that is labelled exempt MUST NOT be touched.",
			As: Admin, Verb: Create, Sent: label(gate.ExemptLabel, "true"), Want: Untouched},
		{ID: "create-exempt-false", Must: "A Node whose exempt label is not \"true\" MUST be armed.",
			As: Admin, Verb: Create, Sent: label(gate.ExemptLabel, "false"), Want: Armed},
		{ID: "create-windows", Must: "A Node of another operating system MUST NOT be touched.",
			As: Admin, Verb: Create, Sent: label("kubernetes.io/os", "windows"), Want: Untouched},
		{ID: "create-no-os", Must: "A Node without the governing label MUST NOT be touched.",
			As: Admin, Verb: Create, Sent: unlabel("kubernetes.io/os"), Want: Untouched},
		{ID: "create-virtual", Must: "A virtual kubelet's Node MUST NOT be touched.",
			As: Admin, Verb: Create, Sent: label("type", "virtual-kubelet"), Want: Untouched},
		{ID: "create-fargate", Must: "A Fargate Node MUST NOT be touched.",
			As: Admin, Verb: Create, Sent: label("eks.amazonaws.com/compute-type", "fargate"), Want: Untouched},
	}
}

// removal: the premature removal of the taint changes nothing.
func removal() []Case {
	return []Case{
		{ID: "remove-strategic", Must: "kubectl's strategic patch that removes the taint MUST change nothing.",
			As: Editor, Verb: Strategic, Stored: stale, Sent: opened, Want: Armed, Verdict: gate.Expired},
		{ID: "remove-merge-null", Must: "A merge patch of the taints to null MUST change nothing.",
			As: Editor, Verb: Merge, Stored: stale, Sent: noTaints, Want: Armed, Verdict: gate.Expired},
		{ID: "remove-json", Must: "A JSON patch that removes the taint MUST change nothing.",
			As: Editor, Verb: JSON, Stored: stale, Sent: opened, Want: Armed, Verdict: gate.Expired},
		{ID: "remove-apply", Must: "A server-side apply without the taint MUST change nothing.",
			As: Editor, Verb: Apply, Stored: edits(foreign("example.com/a"), stale), Sent: opened, Want: Armed, Verdict: gate.Expired},
		{ID: "remove-put", Must: "A replacement without the taint MUST change nothing.",
			As: Editor, Verb: Put, Stored: stale, Sent: opened, Want: Armed, Verdict: gate.Expired},
		{ID: "remove-by-admin", Must: "A cluster admin's ordinary write MUST NOT be a bypass.",
			As: Admin, Verb: Strategic, Stored: stale, Sent: opened, Want: Armed, Verdict: gate.Expired},
		{ID: "remove-among-others", Must: "The taint MUST be put back at the end, the foreign ones unchanged and in order.",
			As: Editor, Verb: JSON, Stored: edits(foreign("example.com/a"), armed, foreign("example.com/b")),
			Sent: opened, Want: Armed, Verdict: gate.Absent},
		{ID: "remove-with-other-changes", Must: "The other changes of the write MUST pass.",
			As: Editor, Verb: Merge, Stored: stale,
			Sent: edits(opened, unschedulable, label("example.com/pool", "blue"), annotate("example.com/note", "x")),
			Want: Armed, Verdict: gate.Expired},
		{ID: "remove-stored-value", Must: "The taint MUST be put back with the value that was stored.",
			As: Editor, Verb: JSON, Stored: taint(gate.DefaultTaintKey, "why", corev1.TaintEffectNoSchedule),
			Sent: noTaints, Want: Armed, Verdict: gate.Absent},
		{ID: "remove-other-effect-stays", Must: "The gate's key under another effect MUST stay beside the taint that is put back.",
			As: Editor, Verb: JSON, Stored: edits(armed, taint(gate.DefaultTaintKey, "", corev1.TaintEffectPreferNoSchedule)),
			Sent: func(n *corev1.Node, _ time.Time) { n.Spec.Taints = n.Spec.Taints[1:] }, Want: Armed, Verdict: gate.Absent},
		{ID: "remove-other-effect-only", Must: "Removing the gate's key under another effect MUST be left alone.",
			As: Editor, Verb: JSON, Stored: edits(armed, taint(gate.DefaultTaintKey, "", corev1.TaintEffectPreferNoSchedule)),
			Sent: func(n *corev1.Node, _ time.Time) { n.Spec.Taints = n.Spec.Taints[:1] }, Want: Untouched, Verdict: gate.Absent},
		{ID: "remove-change-effect", Must: "Changing the taint's effect MUST NOT get rid of it.",
			As: Editor, Verb: Put, Stored: armed,
			Sent: func(n *corev1.Node, _ time.Time) { n.Spec.Taints[0].Effect = corev1.TaintEffectPreferNoSchedule },
			Want: Armed, Verdict: gate.Absent},
		{ID: "remove-change-value", Must: "Changing the taint's value MUST be left alone.",
			As: Editor, Verb: Put, Stored: armed,
			Sent: func(n *corev1.Node, _ time.Time) { n.Spec.Taints[0].Value = "mine" }, Want: Untouched, Verdict: gate.Absent},
		{ID: "remove-lifecycle-controller", Must: "The write in which the lifecycle controller lifts its own taint MUST keep the gate's.",
			As: Lifecycle, Verb: Strategic, Stored: edits(foreign("node.kubernetes.io/unreachable"), stale),
			Sent: noTaints, Want: Armed, Verdict: gate.Expired},
		{ID: "remove-and-spoil", Must: "A heartbeat that is removed with the taint MUST NOT open.",
			As: Editor, Verb: Merge, Stored: edits(armed, beat()), Sent: edits(opened, noBeat), Want: Armed, Verdict: gate.Absent},
		{ID: "remove-old-object", Must: "A replacement by an old open object of another boot MUST NOT open.",
			As: Editor, Verb: Put, Stored: stale, Sent: edits(opened, boot(OtherBoot), beat(age(time.Hour), inBoot(OtherBoot))),
			Want: Denied, Rule: gate.RuleHeartbeatSet, Verdict: gate.OtherBoot},
		{ID: "remove-old-object-by-administrator", Must: "An old object with an old boot id MUST be judged by the stored boot id.",
			As: Administrator, Verb: Put, Stored: stale, Sent: edits(opened, boot(OtherBoot), beat(inBoot(OtherBoot))),
			Want: Armed, Verdict: gate.OtherBoot},
		{ID: "remove-known-to-be-later", Must: "The time at which the taint was put back MUST count, where the stamps are older.",
			As: Editor, Verb: Strategic, Stored: edits(beat(), armedAt(ttl)), Sent: opened, Want: Armed, Clocked: Untouched, Verdict: gate.Expired},
		{ID: "remove-known-to-be-earlier", Must: "The time at which the taint was put back MUST NOT count, where the stamps are newer.",
			As: Editor, Verb: Strategic, Stored: edits(beat(), armedAt(-time.Hour)), Sent: opened, Want: Untouched, Verdict: gate.Fresh},
		{ID: "remove-put-without-uid", Must: "A replacement without a UID MUST be judged by the stored UID.",
			As: Editor, Verb: Put, Stored: stale, Sent: edits(opened, noUID), Want: Armed, Verdict: gate.Expired},
		{ID: "remove-with-boot-id", Must: "A patch of the boot id together with the taint MUST be judged by the stored boot id.",
			As: Editor, Verb: JSON, Stored: edits(armed, beat(inBoot(OtherBoot))), Sent: edits(opened, boot(OtherBoot)),
			Want: Armed, Verdict: gate.OtherBoot},
		{ID: "remove-ungoverned", Must: "Taking a Node out of the gate's reach MUST let its taint go.",
			As: Editor, Verb: Merge, Stored: stale, Sent: edits(opened, label(gate.ExemptLabel, "true")), Want: Untouched},
		{ID: "keep-armed", Must: "A write that leaves an armed Node armed MUST pass unchanged.",
			As: Editor, Verb: Merge, Stored: stale, Sent: label("example.com/pool", "blue"), Want: Untouched, Verdict: gate.Expired},
	}
}

// opening: what a fresh heartbeat allows.
func opening() []Case {
	return []Case{
		{ID: "open-agent", Must: "One write of the agent with heartbeat and removal MUST open.",
			As: Agent, Verb: JSON, Stored: armed, Sent: edits(opened, beat()), Want: Untouched, Verdict: gate.Fresh},
		{ID: "open-agent-keeps-others", Must: "The agent's opening MUST leave foreign taints alone.",
			As: Agent, Verb: JSON, Stored: edits(foreign("example.com/a"), armed, foreign("example.com/b")),
			Sent: edits(opened, beat()), Want: Untouched, Verdict: gate.Fresh},
		{ID: "open-agent-old-clock", Must: "A NEW heartbeat of the agent MUST be judged without its age.",
			As: Agent, Verb: JSON, Stored: armed, Sent: edits(opened, beat(age(time.Hour))), Want: Untouched, Verdict: gate.Fresh},
		{ID: "open-agent-ahead-clock", Must: "A NEW heartbeat of the agent from the future MUST be judged without its time.",
			As: Agent, Verb: JSON, Stored: armed, Sent: edits(opened, beat(age(-time.Hour))), Want: Untouched, Verdict: gate.Fresh},
		{ID: "open-agent-without-new-heartbeat", Must: "A removal by the agent without a NEW heartbeat MUST be judged by age.",
			As: Agent, Verb: JSON, Stored: stale, Sent: opened, Want: Armed, Verdict: gate.Expired},
		{ID: "open-agent-not-ready", Must: "The agent's own ready=false MUST NOT open.",
			As: Agent, Verb: JSON, Stored: armed, Sent: edits(opened, beat(notReady)), Want: Armed, Verdict: gate.NotReady},
		{ID: "open-agent-other-boot", Must: "A NEW heartbeat of another boot MUST NOT open.",
			As: Agent, Verb: JSON, Stored: armed, Sent: edits(opened, beat(inBoot(OtherBoot))), Want: Armed, Verdict: gate.OtherBoot},
		{ID: "open-agent-other-node", Must: "A NEW heartbeat of another Node object MUST NOT open.",
			As: Agent, Verb: JSON, Stored: armed, Sent: edits(opened, beat(ofNode(otherUID))), Want: Armed, Verdict: gate.OtherNode},
		{ID: "open-by-other-when-fresh", Must: "Anybody's removal under a fresh heartbeat MUST pass.",
			As: Editor, Verb: Strategic, Stored: edits(armed, beat()), Sent: opened, Want: Untouched, Verdict: gate.Fresh},
		{ID: "open-administrator", Must: "A heartbeat by somebody with the verb administer MUST open when it is fresh.",
			As: Administrator, Verb: JSON, Stored: armed, Sent: edits(opened, beat()), Want: Untouched, Verdict: gate.Fresh},
		{ID: "open-administrator-stale", Must: "A heartbeat by anybody but the agent MUST be judged by age.",
			As: Administrator, Verb: JSON, Stored: armed, Sent: edits(opened, beat(age(time.Hour))), Want: Armed, Verdict: gate.Expired},
		{ID: "open-extra-tokens", Must: "Tokens behind the judged ones MUST NOT matter.",
			As: Editor, Verb: JSON, Stored: edits(armed, spoiltBeat("seq=17", "seq=x failing= pod=a=b !=?")), Sent: opened,
			Want: Untouched, Verdict: gate.Fresh},
		{ID: "stay-open", Must: "A write to an open Node with a fresh heartbeat MUST pass unchanged.",
			As: Editor, Verb: Merge, Stored: beat(), Sent: label("example.com/pool", "blue"), Want: Untouched, Verdict: gate.Fresh},
	}
}

// evidence: an open Node whose heartbeat says that it must not be.
func evidence() []Case {
	touch := label("example.com/pool", "blue")
	return []Case{
		{ID: "evidence-agent-not-ready", Must: "The agent's ready=false MUST arm in that same write.",
			As: Agent, Verb: JSON, Stored: beat(), Sent: beat(notReady, sequence), Want: Armed, Verdict: gate.NotReady},
		{ID: "evidence-not-ready", Must: "Any write to an open Node whose agent does not serve MUST arm.",
			As: Editor, Verb: Merge, Stored: beat(notReady), Sent: touch, Want: Armed, Verdict: gate.NotReady},
		{ID: "evidence-other-boot", Must: "Any write to an open Node after a reboot MUST arm.",
			As: Editor, Verb: Merge, Stored: edits(boot(OtherBoot), beat()), Sent: touch, Want: Armed, Verdict: gate.OtherBoot},
		{ID: "evidence-lifecycle-controller", Must: "The lifecycle controller's lifting of unreachable after a reboot MUST arm.",
			As: Lifecycle, Verb: Strategic, Stored: edits(foreign("node.kubernetes.io/unreachable"), boot(OtherBoot), beat()),
			Sent: noTaints, Want: Armed, Verdict: gate.OtherBoot},
		{ID: "evidence-no-boot-id", Must: "A Node without a boot id MUST NOT stay open.",
			As: Editor, Verb: Merge, Stored: edits(boot(""), beat()), Sent: touch, Want: Armed, Verdict: gate.OtherBoot},
		{ID: "evidence-zero-boot-id", Must: "An all-zero boot id MUST NOT match, not even itself.",
			As: Editor, Verb: Merge, Stored: edits(boot(zeroBoot), beat(inBoot(zeroBoot))), Sent: touch, Want: Armed, Verdict: gate.OtherBoot},
		{ID: "evidence-boot-id-case", Must: "A boot id in upper case MUST NOT match one in lower case.",
			As: Editor, Verb: Merge, Stored: edits(boot(strings.ToUpper(Boot)), beat()), Sent: touch, Want: Armed, Verdict: gate.OtherBoot},
		{ID: "evidence-other-node", Must: "A heartbeat of a former Node of this name MUST arm.",
			As: Editor, Verb: Merge, Stored: beat(ofNode(otherUID)), Sent: touch, Want: Armed, Verdict: gate.OtherNode},
		{ID: "evidence-dropped", Must: "Dropping the heartbeat MUST arm.",
			As: Editor, Verb: Merge, Stored: beat(), Sent: noBeat, Want: Armed, Verdict: gate.Absent},
		{ID: "evidence-dropped-among-taints", Must: "Arming MUST add at the end of the foreign taints.",
			As: Editor, Verb: Merge, Stored: edits(foreign("example.com/a"), beat()), Sent: noBeat, Want: Armed, Verdict: gate.Absent},
		{ID: "evidence-expired-untouched", Must: "Time alone MUST NOT arm an open Node in admission.",
			As: Editor, Verb: Merge, Stored: beat(age(10 * time.Minute)), Sent: touch, Want: Untouched, Verdict: gate.Expired},
		{ID: "evidence-future-untouched", Must: "A heartbeat of the future MUST NOT arm an open Node in admission.",
			As: Editor, Verb: Merge, Stored: beat(age(-10 * time.Minute)), Sent: touch, Want: Untouched, Verdict: gate.FromFuture},
		{ID: "evidence-sent-armed", Must: "A write that adds the taint MUST pass unchanged.",
			As: Editor, Verb: Merge, Stored: beat(), Sent: armed, Want: Untouched, Verdict: gate.Fresh},
		{ID: "governed-now", Must: "A write by which a Node becomes governed MUST arm.",
			As: Editor, Verb: Merge, Stored: label(gate.ExemptLabel, "true"), Sent: unlabel(gate.ExemptLabel), Want: Armed, Verdict: gate.Absent},
		{ID: "governed-now-fresh", Must: "A write by which a Node becomes governed MUST arm, as CREATE does, whatever its heartbeat.",
			As: Editor, Verb: Merge, Stored: edits(label(gate.ExemptLabel, "true"), beat()), Sent: unlabel(gate.ExemptLabel),
			Want: Armed, Verdict: gate.Fresh},
		{ID: "governed-not-yet", Must: "A write to a Node that is not governed MUST pass unchanged.",
			As: Editor, Verb: Merge, Stored: edits(label(gate.ExemptLabel, "true"), beat(notReady)), Sent: touch, Want: Untouched},
	}
}

// malformed: whatever stands in the annotation, in a removal and on an open Node.
func malformed() []Case {
	spoilt := map[string]Edit{
		"empty":         rawBeat(""),
		"null":          rawBeat("null"),
		"json":          rawBeat(`{"v":1,"ready":true}`),
		"non-ascii":     spoiltBeat("seq=17", "seq=ä"),
		"too-long":      spoiltBeat("seq=17", "seq="+strings.Repeat("7", 512)),
		"200kB":         rawBeat(strings.Repeat("v=1 ready=true ", 13653)),
		"version":       spoiltBeat("v=1", "v=2"),
		"ready":         spoiltBeat("ready=true", "ready=TRUE"),
		"order":         spoiltBeat("v=1 ready=true", "ready=true v=1"),
		"ttl-zero":      spoiltBeat("ttl=60s", "ttl=0s"),
		"ttl-901":       spoiltBeat("ttl=60s", "ttl=901s"),
		"ttl-unit":      spoiltBeat("ttl=60s", "ttl=1m"),
		"feb-30":        rawBeat("v=1 ready=true time=2026-02-30T00:00:00Z ttl=60s boot=" + Boot + " node=" + otherUID),
		"feb-29":        rawBeat("v=1 ready=true time=2026-02-29T00:00:00Z ttl=60s boot=" + Boot + " node=" + otherUID),
		"year-2100":     rawBeat("v=1 ready=true time=2100-01-01T00:00:00Z ttl=60s boot=" + Boot + " node=" + otherUID),
		"second-60":     rawBeat("v=1 ready=true time=2026-06-30T23:59:60Z ttl=60s boot=" + Boot + " node=" + otherUID),
		"newline":       spoiltBeat(" seq=17", "\n"),
		"double-space":  spoiltBeat(" ttl", "  ttl"),
		"control":       spoiltBeat("seq=17", "seq=\x01"),
		"no-node":       spoiltBeat(" node=", " nodes="),
		"trailing-text": spoiltBeat("seq=17", "seventeen"),
	}
	var table []Case
	for _, name := range sorted(spoilt) {
		table = append(table,
			Case{ID: "malformed-" + name, Must: "A heartbeat that is not of the form MUST NOT open.",
				As: Editor, Verb: JSON, Stored: edits(armed, spoilt[name]), Sent: opened, Want: Armed, Verdict: gate.Malformed})
	}
	return append(table,
		Case{ID: "malformed-evidence", Must: "Any write to an open Node with a malformed heartbeat MUST arm.",
			As: Editor, Verb: Merge, Stored: rawBeat("null"), Sent: label("example.com/pool", "blue"), Want: Armed, Verdict: gate.Malformed},
		Case{ID: "malformed-by-agent", Must: "A malformed heartbeat of the agent itself MUST NOT open.",
			As: Agent, Verb: JSON, Stored: armed, Sent: edits(opened, rawBeat("v=1 ready=true")), Want: Armed, Verdict: gate.Malformed},
		Case{ID: "leap-day", Must: "A heartbeat of a leap day that exists MUST be read.",
			As: Editor, Verb: JSON, Stored: edits(armed, rawBeat("v=1 ready=true time=2024-02-29T00:00:00Z ttl=60s boot="+Boot+" node="+otherUID)),
			Sent: opened, Want: Armed, Verdict: gate.OtherNode},
	)
}

// boundaries: the sent write removes and stamps nothing, so now is exactly the
// stored stamp.
func boundaries() []Case {
	row := func(id, must string, a time.Duration, lasts time.Duration, want Outcome, verdict gate.Verdict) Case {
		return Case{ID: id, Must: must, As: Editor, Verb: JSON, Want: want, Verdict: verdict,
			Stored: edits(armed, beat(age(a), lasting(lasts))), Sent: noTaints}
	}
	return []Case{
		row("age-one-second-less", "A heartbeat one second younger than its ttl MUST be fresh.", ttl-time.Second, ttl, Untouched, gate.Fresh),
		row("age-exactly", "A heartbeat as old as its ttl MUST be expired.", ttl, ttl, Armed, gate.Expired),
		row("age-one-second-more", "A heartbeat one second older than its ttl MUST be expired.", ttl+time.Second, ttl, Armed, gate.Expired),
		row("ahead-one-second-less", "A heartbeat ahead by less than its ttl MUST be fresh.", -ttl+time.Second, ttl, Untouched, gate.Fresh),
		row("ahead-exactly", "A heartbeat ahead by exactly its ttl MUST be fresh.", -ttl, ttl, Untouched, gate.Fresh),
		row("ahead-one-second-more", "A heartbeat ahead by more than its ttl MUST be from the future.", -ttl-time.Second, ttl, Armed, gate.FromFuture),
		row("ttl-least", "A ttl of one second MUST be honoured.", 0, time.Second, Untouched, gate.Fresh),
		row("ttl-least-over", "A ttl of one second MUST be over after one second.", time.Second, time.Second, Armed, gate.Expired),
		row("ttl-most", "A ttl of 900 seconds MUST be honoured.", 899*time.Second, 900*time.Second, Untouched, gate.Fresh),
		row("ttl-most-over", "A ttl of 900 seconds MUST be over after 900 seconds.", 900*time.Second, 900*time.Second, Armed, gate.Expired),
	}
}

// stamps: managedFields is no trusted clock.
func stamps() []Case {
	fresh, old := edits(armed, beat()), edits(armed, beat(age(10*time.Minute)))
	in2030 := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	in2019 := time.Date(2019, 12, 31, 23, 59, 59, 0, time.UTC)
	return []Case{
		{ID: "stamps-cleared", Must: "A Node whose managers are not tracked has no clock, and its taint MUST be kept.",
			As: Editor, Verb: JSON, Stored: edits(fresh, untracked), Sent: noTaints, Want: Armed, Clocked: Untouched, Verdict: gate.Expired},
		{ID: "stamps-cleared-in-the-write", Must: "Clearing managedFields in the write MUST leave the stored stamps to judge by.",
			As: Editor, Verb: Put, Stored: old, Sent: edits(noTaints, untracked), Want: Armed, Verdict: gate.Expired},
		{ID: "stamps-absent-in-the-write", Must: "A replacement without managedFields MUST be judged by the stored stamps.",
			As: Editor, Verb: Put, Stored: old, Sent: edits(noTaints, noManagedFields), Want: Armed, Verdict: gate.Expired},
		{ID: "stamps-forged-back", Must: "Stamps forged into the past MUST NOT make an old heartbeat fresh.",
			As: Editor, Verb: Put, Stored: old, Sent: edits(noTaints, stampedAgo(10*time.Minute)), Want: Armed, Verdict: gate.Expired},
		{ID: "stamps-forged-ahead", Must: "Stamps forged into 2030 MUST at most keep the Node armed.",
			As: Editor, Verb: Put, Stored: fresh, Sent: edits(noTaints, stamped(in2030)), Want: Armed, Clocked: Untouched, Verdict: gate.Expired},
		{ID: "stamps-forged-ahead-open", Must: "Stamps forged into 2030 MUST NOT arm an open Node.",
			As: Editor, Verb: Put, Stored: beat(), Sent: stamped(in2030), Want: Untouched, Verdict: gate.Expired},
		{ID: "stamps-before-2020", Must: "Stamps before 2020 MUST be ignored.",
			As: Editor, Verb: Put, Stored: edits(fresh, untracked), Sent: edits(noTaints, stamped(in2019)), Want: Armed, Clocked: Untouched, Verdict: gate.Expired},
		{ID: "stamps-without-time", Must: "An entry without a time MUST be ignored.",
			As: Editor, Verb: Put, Stored: edits(fresh, untracked), Sent: edits(noTaints, unstamped), Want: Armed, Clocked: Untouched, Verdict: gate.Expired},
		{ID: "stamps-of-many", Must: "Stamps of as many managers as a Node may come to have MUST count.",
			As: Editor, Verb: JSON, Stored: edits(fresh, stampedBy(gate.MaxStamps/2)), Sent: noTaints, Want: Untouched, Verdict: gate.Fresh},
		{ID: "stamps-of-too-many", Must: "Stamps of more managers than any Node has MUST NOT be looked at, and the taint MUST be kept.",
			As: Editor, Verb: JSON, Stored: edits(fresh, stampedBy(gate.MaxStamps+1)), Sent: noTaints, Want: Armed, Clocked: Untouched, Verdict: gate.Expired},
		{ID: "stamps-zero-time", Must: "An entry of the zero time MUST be ignored.",
			As: Editor, Verb: Put, Stored: fresh, Sent: edits(noTaints, stamped(time.Time{})), Want: Untouched, Verdict: gate.Fresh},
	}
}

func lists() []Case {
	return []Case{
		{ID: "list-null", Must: "An open Node without any taints MUST be armed on evidence.",
			As: Editor, Verb: Put, Stored: beat(), Sent: edits(noTaints, noBeat), Want: Armed, Verdict: gate.Absent},
		{ID: "list-empty", Must: "An open Node with an empty list MUST be armed on evidence.",
			As: Editor, Verb: Put, Stored: beat(), Sent: edits(emptyTaints, noBeat), Want: Armed, Verdict: gate.Absent},
		{ID: "list-emptied", Must: "An emptied list MUST come back with the gate's taint alone.",
			As: Editor, Verb: Put, Stored: edits(foreign("example.com/a"), armed), Sent: emptyTaints, Want: Armed, Verdict: gate.Absent},
		{ID: "list-300", Must: "Among 300 taints the gate's MUST be put back.",
			As: Editor, Verb: JSON, Stored: edits(manyTaints(300), armed), Sent: opened, Want: Armed, Verdict: gate.Absent},
		{ID: "list-300-open", Must: "Among 300 taints the gate's MUST go when the heartbeat is fresh.",
			As: Editor, Verb: JSON, Stored: edits(manyTaints(300), armed, beat()), Sent: opened, Want: Untouched, Verdict: gate.Fresh},
		{ID: "list-no-annotations", Must: "A Node without annotations MUST keep its taint.",
			As: Editor, Verb: JSON, Stored: armed, Sent: noTaints, Want: Armed, Verdict: gate.Absent},
	}
}

func adoption() []Case {
	return []Case{
		{ID: "never-adopted", Must: "A Node that never carried anything of the gate MUST NOT be touched by an UPDATE.",
			As: Editor, Verb: Merge, Stored: edits(), Sent: label("example.com/pool", "blue"), Want: Untouched, Verdict: gate.Absent},
		{ID: "never-adopted-taints", Must: "Changes of foreign taints of a Node that was never adopted MUST pass.",
			As: Editor, Verb: Merge, Stored: foreign("example.com/a"), Sent: noTaints, Want: Untouched, Verdict: gate.Absent},
		{ID: "adopted-by-taint", Must: "The stored taint alone MUST adopt the Node.",
			As: Editor, Verb: Merge, Stored: armed, Sent: noTaints, Want: Armed, Verdict: gate.Absent},
		{ID: "adopted-by-sent-heartbeat", Must: "The first heartbeat MUST adopt the Node, and arm it if it is not ready.",
			As: Agent, Verb: JSON, Stored: edits(), Sent: beat(notReady), Want: Armed, Verdict: gate.NotReady},
		{ID: "adopted-while-open", Must: "The first ready heartbeat of an agent on a running Node MUST NOT disturb it.",
			As: Agent, Verb: JSON, Stored: edits(), Sent: beat(), Want: Untouched, Verdict: gate.Fresh},
		{ID: "adopted-by-bypass", Must: "A bypass that is over MUST adopt the Node.",
			As: Editor, Verb: Merge, Stored: bypass(-time.Minute), Sent: label("example.com/pool", "blue"), Want: Armed, Verdict: gate.Absent},
	}
}

func kubelets() []Case {
	return []Case{
		{ID: "kubelet-update", Must: "A kubelet's own write MUST NOT be mutated: NodeRestriction would refuse it.",
			As: Kubelet, Verb: Merge, Stored: edits(boot(OtherBoot), beat()), Sent: label("example.com/pool", "blue"), Want: Untouched},
		{ID: "kubelet-removes", Must: "A kubelet's removal of the taint is refused by NodeRestriction.",
			As: Kubelet, Verb: Merge, Stored: stale, Sent: opened, Want: Denied, ByKubernetes: true},
		{ID: "kubelet-status", Must: "A kubelet's status write MUST pass unchanged.",
			As: Kubelet, Verb: Merge, Status: true, Stored: beat(), Sent: boot(OtherBoot), Want: Untouched},
		{ID: "kubelet-status-armed", Must: "Taints in a write of the status MUST have no effect.",
			As: Editor, Verb: Merge, Status: true, Stored: stale, Sent: edits(boot(OtherBoot)), Want: Untouched},
		{ID: "not-a-kubelet-by-group", Must: "A user with a kubelet's name and not its group MUST be judged as anybody.",
			As: "system:node:impostor", Verb: Merge, Stored: stale, Sent: opened, Want: Armed, Verdict: gate.Expired},
	}
}

func twoGates() []Case {
	both := edits(label(StorageLabel, "true"), armed, storageArmed)
	return []Case{
		{ID: "two-create", Must: "A Node that two gates govern MUST be born with both taints.",
			As: Admin, Verb: Create, Sent: label(StorageLabel, "true"), Want: Armed, Storage: Armed},
		{ID: "two-remove-both", Must: "Removing both taints MUST bring both back.",
			As: Editor, Verb: Merge, Stored: both, Sent: noTaints, Want: Armed, Storage: Armed, Verdict: gate.Absent},
		{ID: "two-one-fresh", Must: "Of two gates only the one with a fresh heartbeat MUST open.",
			As: Editor, Verb: Merge, Stored: edits(both, beatOf("storage")), Sent: noTaints, Want: Armed, Storage: Untouched, Verdict: gate.Absent},
		{ID: "two-other-fresh", Must: "Of two gates only the one with a fresh heartbeat MUST open, the other way round.",
			As: Editor, Verb: Merge, Stored: edits(both, beat()), Sent: noTaints, Want: Untouched, Storage: Armed, Verdict: gate.Fresh},
		{ID: "two-both-fresh", Must: "Two fresh heartbeats MUST open both gates in one write.",
			As: Editor, Verb: Merge, Stored: edits(both, beat(), beatOf("storage")), Sent: noTaints, Want: Untouched, Verdict: gate.Fresh},
		{ID: "two-agent-opens-own", Must: "The agent of one gate MUST NOT open the other.",
			As: Agent, Verb: JSON, Stored: both, Sent: edits(noTaints, beat()), Want: Untouched, Storage: Armed, Verdict: gate.Fresh},
		{ID: "two-embedding-agent", Must: "An embedding agent MUST open its own gate.",
			As: StorageAgent, Verb: JSON, Stored: both, Sent: edits(storageOpened, beatOf("storage")), Want: Untouched, Verdict: gate.Absent},
		{ID: "two-evidence", Must: "Dropping both heartbeats MUST arm both gates.",
			As: Editor, Verb: Merge, Stored: edits(label(StorageLabel, "true"), beat(), beatOf("storage")),
			Sent: edits(noBeat, unannotate(gate.HeartbeatPrefix+"storage")), Want: Armed, Storage: Armed, Verdict: gate.Absent},
		{ID: "two-governed-by-second", Must: "A Node that the second gate comes to govern MUST be armed by it alone.",
			As: Editor, Verb: Merge, Stored: beat(), Sent: label(StorageLabel, "true"), Want: Untouched, Storage: Armed, Verdict: gate.Fresh},
	}
}

func bypasses() []Case {
	return []Case{
		{ID: "bypass-opens", Must: "Under a bypass anybody's removal MUST pass.",
			As: Editor, Verb: JSON, Stored: edits(armed, bypass(time.Hour)), Sent: noTaints, Want: Untouched, Verdict: gate.Bypassed},
		{ID: "bypass-and-removal", Must: "Bypass and removal in one write MUST open.",
			As: Bypasser, Verb: JSON, Stored: armed, Sent: edits(noTaints, bypass(time.Hour)), Want: Untouched, Verdict: gate.Bypassed},
		{ID: "bypass-wins", Must: "A bypass MUST win over every verdict on the heartbeat.",
			As: Editor, Verb: JSON, Stored: edits(armed, beat(notReady), bypass(time.Hour)), Sent: noTaints, Want: Untouched, Verdict: gate.Bypassed},
		{ID: "bypass-last-second", Must: "A bypass MUST hold until its last second.",
			As: Editor, Verb: JSON, Stored: edits(armed, bypass(time.Second)), Sent: noTaints, Want: Untouched, Verdict: gate.Bypassed},
		{ID: "bypass-over", Must: "A bypass MUST be over at its very end.",
			As: Editor, Verb: JSON, Stored: edits(armed, bypass(0)), Sent: noTaints, Want: Armed, Verdict: gate.Absent},
		{ID: "bypass-malformed", Must: "A malformed bypass MUST NOT open.",
			Predates: true, As: Editor, Verb: JSON, Stored: edits(armed, rawBypass("until=tomorrow reason=x")), Sent: noTaints, Want: Armed, Verdict: gate.Absent},
		{ID: "bypass-without-reason", Must: "A bypass without a reason MUST NOT open.",
			Predates: true, As: Editor, Verb: JSON, Stored: edits(armed, rawBypass("until=2090-01-01T00:00:00Z reason=")), Sent: noTaints, Want: Armed, Verdict: gate.Absent},
		{ID: "bypass-no-clock", Must: "Without a clock a bypass MUST NOT open.",
			Predates: true, As: Editor, Verb: JSON, Stored: edits(armed, bypass(time.Hour), untracked), Sent: noTaints, Want: Armed, Clocked: Untouched, Verdict: gate.Absent},
		{ID: "bypass-cleared", Must: "Clearing a bypass MUST arm a Node that has nothing else to be open by.",
			As: Editor, Verb: Merge, Stored: bypass(time.Hour), Sent: noBypass, Want: Armed, Verdict: gate.Absent},
	}
}

// heartbeatWriters: who may set and remove a heartbeat.
func heartbeatWriters() []Case {
	denied := func(id, must string, as Identity, status bool, verdict gate.Verdict) Case {
		c := Case{ID: id, Must: must, As: as, Verb: Merge, Status: status, Stored: armed, Sent: beat(),
			Want: Denied, Rule: gate.RuleHeartbeatSet, Verdict: verdict}
		return c
	}
	return []Case{
		denied("heartbeat-by-editor", "An editor of Nodes MUST NOT set a heartbeat.", Editor, false, gate.Fresh),
		denied("heartbeat-by-editor-status", "An editor of Nodes MUST NOT set a heartbeat through nodes/status.", Editor, true, ""),
		denied("heartbeat-by-kubelet", "A kubelet MUST NOT set a heartbeat.", Kubelet, false, ""),
		denied("heartbeat-by-kubelet-status", "A kubelet MUST NOT set a heartbeat through nodes/status.", Kubelet, true, ""),
		denied("heartbeat-by-other-pod", "Another pod of the node MUST NOT set a heartbeat.", OtherPod, false, gate.Fresh),
		denied("heartbeat-from-elsewhere", "The agent of another node MUST NOT set this Node's heartbeat.", AgentElsewhere, false, gate.Fresh),
		denied("heartbeat-node-token", "A token that is bound to a Node object MUST NOT count as one bound to a pod.", AgentOfNode, false, gate.Fresh),
		denied("heartbeat-unbound", "An unbound token of the agent's account MUST NOT set a heartbeat.", AgentUnbound, false, gate.Fresh),
		denied("heartbeat-by-bypasser", "The verb bypass MUST NOT allow a heartbeat.", Bypasser, false, gate.Fresh),
		denied("heartbeat-by-storage-agent", "The agent of another gate MUST NOT set the heartbeat.", StorageAgent, false, gate.Fresh),
		{ID: "heartbeat-other-gate", Must: "The agent MUST NOT set the heartbeat of a gate that is not its own.",
			As: Agent, Verb: Merge, Stored: edits(label(StorageLabel, "true"), armed, storageArmed), Sent: beatOf("storage"),
			Want: Denied, Rule: gate.RuleOwnMetadata, StorageRule: gate.RuleHeartbeatSet, Verdict: gate.Absent},
		{ID: "heartbeat-changed-by-editor", Must: "An editor of Nodes MUST NOT change a heartbeat.",
			As: Editor, Verb: Merge, Stored: beat(), Sent: beat(sequence), Want: Denied, Rule: gate.RuleHeartbeatSet, Verdict: gate.Fresh},
		{ID: "heartbeat-not-ready-by-editor", Must: "An editor of Nodes MUST NOT say that the agent is not ready.",
			As: Editor, Verb: Merge, Stored: beat(), Sent: beat(notReady), Want: Denied, Rule: gate.RuleHeartbeatSet, Verdict: gate.NotReady},
		{ID: "heartbeat-resent", Must: "A replacement that carries the heartbeat unchanged MUST pass.",
			As: Editor, Verb: Put, Stored: beat(), Sent: label("example.com/pool", "blue"), Want: Untouched, Verdict: gate.Fresh},
		{ID: "heartbeat-by-agent", Must: "The agent MUST be able to set its heartbeat on an armed Node.",
			As: Agent, Verb: Merge, Stored: armed, Sent: beat(notReady), Want: Untouched, Verdict: gate.NotReady},
		{ID: "heartbeat-by-administrator-status", Must: "With the verb administer a heartbeat may be set through nodes/status.",
			As: Administrator, Verb: Merge, Status: true, Stored: armed, Sent: beat(), Want: Untouched},
		{ID: "heartbeat-by-storage-agent-status", Must: "An embedding agent may write its heartbeat through nodes/status.",
			As: StorageAgent, Verb: Merge, Status: true, Stored: edits(label(StorageLabel, "true"), armed, storageArmed),
			Sent: beatOf("storage"), Want: Untouched},
		{ID: "heartbeat-removed-by-editor", Must: "Anybody may remove a heartbeat on the main resource, which arms.",
			As: Editor, Verb: JSON, Stored: beat(), Sent: noBeat, Want: Armed, Verdict: gate.Absent},
		{ID: "heartbeat-removed-status", Must: "A heartbeat MUST NOT be removed through nodes/status.",
			As: Editor, Verb: Merge, Status: true, Stored: beat(), Sent: noBeat, Want: Denied, Rule: gate.RuleHeartbeatRemoved},
		{ID: "heartbeat-removed-by-kubelet", Must: "A kubelet MUST NOT remove a heartbeat.",
			As: Kubelet, Verb: Merge, Stored: beat(), Sent: noBeat, Want: Denied, Rule: gate.RuleHeartbeatRemoved},
		{ID: "heartbeat-removed-by-kubelet-status", Must: "A kubelet MUST NOT remove a heartbeat through nodes/status.",
			As: Kubelet, Verb: Merge, Status: true, Stored: beat(), Sent: noBeat, Want: Denied, Rule: gate.RuleHeartbeatRemoved},
		{ID: "heartbeat-removed-by-administrator-status", Must: "With the verb administer a heartbeat may be removed through nodes/status.",
			As: Administrator, Verb: Merge, Status: true, Stored: edits(armed, beat()), Sent: noBeat, Want: Untouched},
	}
}

// bypassWriters: who may set and remove a bypass, and for how long.
func bypassWriters() []Case {
	return []Case{
		{ID: "bypass-by-bypasser", Must: "With the verb bypass a bypass may be set.",
			As: Bypasser, Verb: Merge, Stored: armed, Sent: bypass(time.Hour), Want: Untouched, Verdict: gate.Bypassed},
		{ID: "bypass-by-bypasser-status", Must: "With the verb bypass a bypass may be set through nodes/status.",
			As: Bypasser, Verb: Merge, Status: true, Stored: armed, Sent: bypass(time.Hour), Want: Untouched},
		{ID: "bypass-by-editor", Must: "An editor of Nodes MUST NOT set a bypass.",
			As: Editor, Verb: Merge, Stored: armed, Sent: bypass(time.Hour), Want: Denied, Rule: gate.RuleBypassSet, Verdict: gate.Bypassed},
		{ID: "bypass-by-editor-status", Must: "An editor of Nodes MUST NOT set a bypass through nodes/status.",
			As: Editor, Verb: Merge, Status: true, Stored: armed, Sent: bypass(time.Hour), Want: Denied, Rule: gate.RuleBypassSet},
		{ID: "bypass-by-administrator", Must: "The verb administer MUST NOT allow a bypass.",
			As: Administrator, Verb: Merge, Stored: armed, Sent: bypass(time.Hour), Want: Denied, Rule: gate.RuleBypassSet, Verdict: gate.Bypassed},
		{ID: "bypass-by-kubelet", Must: "A kubelet MUST NOT set a bypass.",
			As: Kubelet, Verb: Merge, Status: true, Stored: armed, Sent: bypass(time.Hour), Want: Denied, Rule: gate.RuleBypassSet},
		{ID: "bypass-by-kubelet-create", Must: "A kubelet MUST NOT bring a bypass along when it registers.",
			As: Kubelet, Verb: Create, Sent: bypass(time.Hour), Want: Denied, Rule: gate.RuleBypassSet},
		{ID: "bypass-by-agent", Must: "The agent MUST NOT bypass its own gate.",
			As: Agent, Verb: Merge, Stored: armed, Sent: bypass(time.Hour), Want: Denied, Rule: gate.RuleBypassSet, Verdict: gate.Bypassed},
		{ID: "bypass-longest", Must: "A bypass of nearly 24 hours MUST be possible.",
			As: Bypasser, Verb: Merge, Stored: armed, Sent: bypass(24*time.Hour - time.Minute), Want: Untouched, Verdict: gate.Bypassed},
		{ID: "bypass-too-long", Must: "A bypass of more than 24 hours MUST be refused.",
			As: Bypasser, Verb: Merge, Stored: armed, Sent: bypass(24*time.Hour + time.Minute), Want: Denied, Rule: gate.RuleBypassValue, Verdict: gate.Bypassed},
		{ID: "bypass-too-long-by-admin", Must: "A bypass of more than 24 hours MUST be refused to a cluster admin too.",
			As: Admin, Verb: Merge, Stored: armed, Sent: bypass(48 * time.Hour), Want: Denied, Rule: gate.RuleBypassValue, Verdict: gate.Bypassed},
		{ID: "bypass-bad-form", Must: "A bypass that is not of the form MUST be refused, with the form in the message.",
			As: Bypasser, Verb: Merge, Stored: armed, Sent: rawBypass("1h because"), Want: Denied, Rule: gate.RuleBypassValue, Verdict: gate.Absent},
		{ID: "bypass-bad-date", Must: "A bypass until a date that does not exist MUST be refused.",
			As: Bypasser, Verb: Merge, Stored: armed, Sent: rawBypass("until=2026-02-30T00:00:00Z reason=x"), Want: Denied, Rule: gate.RuleBypassValue, Verdict: gate.Absent},
		{ID: "bypass-removed", Must: "Anybody may remove a bypass on the main resource, which arms.",
			As: Editor, Verb: JSON, Stored: bypass(time.Hour), Sent: noBypass, Want: Armed, Verdict: gate.Absent},
		{ID: "bypass-removed-status", Must: "A bypass MUST NOT be removed through nodes/status.",
			As: Editor, Verb: Merge, Status: true, Stored: bypass(time.Hour), Sent: noBypass, Want: Denied, Rule: gate.RuleBypassRemoved},
		{ID: "bypass-removed-by-kubelet", Must: "A kubelet MUST NOT remove a bypass.",
			As: Kubelet, Verb: Merge, Stored: bypass(time.Hour), Sent: noBypass, Want: Denied, Rule: gate.RuleBypassRemoved},
	}
}

// confinement: nodegate's own agent, with RBAC that allows it everything on
// Nodes.
func confinement() []Case {
	denied := func(id, must string, rule gate.Rule, sent Edit) Case {
		return Case{ID: id, Must: must, As: Agent, Verb: JSON, Want: Denied, Rule: rule, Verdict: gate.Fresh,
			Stored: edits(foreign("example.com/a"), taint("example.com/evict", "", corev1.TaintEffectNoExecute), label("example.com/pool", "green"), annotate("example.com/note", "x"), beat()), Sent: sent}
	}
	return []Case{
		denied("agent-label", "The agent MUST NOT set a label.", gate.RuleOwnMetadata, label("example.com/new", "x")),
		denied("agent-label-change", "The agent MUST NOT change a label.", gate.RuleOwnMetadata, label("example.com/pool", "blue")),
		denied("agent-label-removed", "The agent MUST NOT remove a label.", gate.RuleOwnMetadata, unlabel("example.com/pool")),
		denied("agent-annotation", "The agent MUST NOT set another annotation.", gate.RuleOwnMetadata, annotate("example.com/new", "x")),
		denied("agent-annotation-removed", "The agent MUST NOT remove another annotation.", gate.RuleOwnMetadata, unannotate("example.com/note")),
		denied("agent-finalizer", "The agent MUST NOT add a finalizer.", gate.RuleOwnMetadata, finalizer("example.com/hold")),
		denied("agent-foreign-taint-added", "The agent MUST NOT add a foreign taint.", gate.RuleOwnSpec, foreign("example.com/b")),
		denied("agent-foreign-taint-removed", "The agent MUST NOT remove a foreign taint.", gate.RuleOwnSpec, noTaints),
		denied("agent-foreign-taint-changed", "The agent MUST NOT change a foreign taint.", gate.RuleOwnSpec,
			func(n *corev1.Node, _ time.Time) { n.Spec.Taints[0].Value = "x" }),
		denied("agent-foreign-taint-time", "The agent MUST NOT change since when a foreign taint evicts pods.", gate.RuleOwnSpec,
			func(n *corev1.Node, now time.Time) { n.Spec.Taints[1].TimeAdded = &metav1.Time{Time: now} }),
		denied("agent-unschedulable", "The agent MUST NOT cordon its Node.", gate.RuleOwnSpec, unschedulable),
		denied("agent-provider-id", "The agent MUST NOT set the provider id.", gate.RuleOwnSpec, providerID("example://1")),
		denied("agent-taint-value", "The agent MUST NOT set the gate's taint with a value of its own.", gate.RuleOwnSpec,
			taint(gate.DefaultTaintKey, "mine", corev1.TaintEffectNoSchedule)),
		{ID: "agent-exempts-itself", Must: "The agent MUST NOT take its Node out of the gate's reach.",
			As: Agent, Verb: JSON, Stored: stale, Sent: edits(opened, label(gate.ExemptLabel, "true")),
			Want: Denied, Rule: gate.RuleOwnMetadata},
		{ID: "agent-other-node", Must: "The agent MUST NOT update another node's Node.",
			As: AgentElsewhere, Verb: JSON, Stored: edits(armed, beat()), Sent: opened, Want: Denied, Rule: gate.RuleOwnNode, Verdict: gate.Fresh},
		{ID: "agent-unbound-updates", Must: "The agent's account with an unbound token MUST NOT update any Node.",
			As: AgentUnbound, Verb: JSON, Stored: edits(armed, beat()), Sent: opened, Want: Denied, Rule: gate.RuleOwnNode, Verdict: gate.Fresh},
		{ID: "agent-node-token-updates", Must: "A token that is bound to a Node object MUST NOT update it.",
			As: AgentOfNode, Verb: JSON, Stored: edits(armed, beat()), Sent: opened, Want: Denied, Rule: gate.RuleOwnNode, Verdict: gate.Fresh},
		{ID: "agent-status", Must: "The agent MUST NOT write the status.",
			As: Agent, Verb: Merge, Status: true, Stored: beat(), Sent: boot(OtherBoot), Want: Denied, Rule: gate.RuleOwnNode},
		{ID: "agent-create", Must: "The agent MUST NOT create a Node.",
			As: Agent, Verb: Create, Sent: edits(), Want: Denied, Rule: gate.RuleOwnNode},
		{ID: "agent-delete", Must: "The agent MUST NOT delete its Node.",
			As: Agent, Verb: Delete, Stored: beat(), Want: Denied, Rule: gate.RuleOwnNode},
		{ID: "agent-put", Must: "A replacement by the agent that changes only its own MUST pass.",
			As: Agent, Verb: Put, Stored: edits(foreign("example.com/a"), armed), Sent: edits(opened, beat()), Want: Untouched, Verdict: gate.Fresh},
		{ID: "agent-tolerated-prefix", Must: "A label with a tolerated prefix MAY change in the agent's write.",
			Tolerating: true, As: Agent, Verb: JSON, Stored: beat(), Sent: edits(beat(sequence), label("mesh.example.com/seen", "1"), annotate("mesh.example.com/seen", "1")),
			Want: Untouched, Verdict: gate.Fresh},
		{ID: "agent-no-tolerated-prefix", Must: "Without tolerated prefixes no label MAY change in the agent's write.",
			As: Agent, Verb: JSON, Stored: beat(), Sent: edits(beat(sequence), label("mesh.example.com/seen", "1")),
			Want: Denied, Rule: gate.RuleOwnMetadata, Verdict: gate.Fresh},
		{ID: "agent-beyond-tolerated-prefix", Must: "A label without a tolerated prefix MUST NOT change in the agent's write.",
			Tolerating: true, As: Agent, Verb: JSON, Stored: beat(), Sent: edits(beat(sequence), label("example.com/new", "1")),
			Want: Denied, Rule: gate.RuleOwnMetadata, Verdict: gate.Fresh},
		{ID: "embedding-agent-labels", Must: "An embedding agent's other writes are its RBAC's matter.",
			As: StorageAgent, Verb: JSON, Stored: edits(label(StorageLabel, "true"), beat(), beatOf("storage")), Sent: label("example.com/zone", "z1"),
			Want: Untouched, Verdict: gate.Fresh},
		{ID: "embedding-agent-elsewhere", Must: "An embedding agent MUST NOT open its gate on another node.",
			As: StorageElsewhere, Verb: JSON, Stored: edits(label(StorageLabel, "true"), storageArmed, beat(), beatOf("storage")), Sent: storageOpened,
			Want: Denied, StorageRule: gate.RuleOwnNode, Verdict: gate.Fresh},
	}
}

// foreignMutators: policies of somebody else that take the taint away, whichever
// comes first.
func foreignMutators() []Case {
	return []Case{
		{ID: "foreign-create", Must: "A foreign policy that strips the taint MUST NOT keep a Node from being born armed.",
			As: Admin, Verb: Create, Sent: label(StripLabel, "true"), Want: Armed, Foreign: true, Rounds: 10},
		{ID: "foreign-update", Must: "A foreign policy that strips the taint MUST NOT win in any write.",
			As: Editor, Verb: Merge, Stored: edits(label(StripLabel, "true"), armed), Sent: label("example.com/pool", "blue"),
			Want: Untouched, Verdict: gate.Absent, Foreign: true, Rounds: 10},
		{ID: "foreign-remove", Must: "A removal and a foreign policy together MUST NOT win.",
			As: Editor, Verb: JSON, Stored: edits(label(StripLabel, "true"), armed), Sent: noTaints,
			Want: Armed, Verdict: gate.Absent, Foreign: true, Rounds: 10},
		{ID: "foreign-webhook-create", Must: "A foreign webhook that strips the taint MUST NOT keep a Node from being born armed.",
			As: Admin, Verb: Create, Sent: label(StripLabel, StripByWebhook), Want: Armed, Foreign: true},
		{ID: "foreign-webhook-update", Must: "A foreign webhook that strips the taint after the gate's first look MUST NOT win.",
			As: Editor, Verb: Merge, Stored: edits(label(StripLabel, StripByWebhook), armed), Sent: label("example.com/pool", "blue"),
			Want: Untouched, Verdict: gate.Absent, Foreign: true},
	}
}

// modes: what stays on and what does not.
func modes() []Case {
	var table []Case
	for _, mode := range []gate.Mode{gate.ModeObserve, gate.ModePaused} {
		table = append(table,
			Case{ID: string(mode) + "-create", Must: "In mode " + string(mode) + " a new Node MUST NOT be touched.",
				Mode: mode, As: Admin, Verb: Create, Sent: edits(), Want: Untouched},
			Case{ID: string(mode) + "-remove", Must: "In mode " + string(mode) + " a removal MUST pass.",
				Mode: mode, As: Editor, Verb: JSON, Stored: stale, Sent: opened, Want: Untouched, Verdict: gate.Expired},
			Case{ID: string(mode) + "-evidence", Must: "In mode " + string(mode) + " evidence MUST NOT arm.",
				Mode: mode, As: Agent, Verb: JSON, Stored: beat(), Sent: beat(notReady, sequence), Want: Untouched, Verdict: gate.NotReady},
			Case{ID: string(mode) + "-open", Must: "In mode " + string(mode) + " the agent MUST be able to open.",
				Mode: mode, As: Agent, Verb: JSON, Stored: armed, Sent: edits(opened, beat()), Want: Untouched, Verdict: gate.Fresh},
			Case{ID: string(mode) + "-heartbeat", Must: "In mode " + string(mode) + " the rules on who may write a heartbeat MUST stay on.",
				Mode: mode, As: Editor, Verb: Merge, Stored: armed, Sent: beat(), Want: Denied, Rule: gate.RuleHeartbeatSet, Verdict: gate.Fresh},
			Case{ID: string(mode) + "-confinement", Must: "In mode " + string(mode) + " the agent MUST stay confined.",
				Mode: mode, As: Agent, Verb: JSON, Stored: beat(), Sent: unschedulable, Want: Denied, Rule: gate.RuleOwnSpec, Verdict: gate.Fresh},
		)
	}
	return table
}
