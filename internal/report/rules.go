package report

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// rules are all of them in order, and what each went by. Which one holds is for
// [gate.Judge] to say.
func rules(node *corev1.Node, g *gate.Gate, verdict gate.Verdict, now time.Time) []Rule {
	var all []Rule
	reached := true
	for _, v := range gate.Verdicts() {
		rule := Rule{Verdict: v}
		if reached {
			rule.Seen = seen(node, g, v, now)
			rule.Outcome = "no"
		}
		if v == verdict {
			rule.Outcome, reached = "yes", false
		}
		all = append(all, rule)
	}
	return all
}

// seen is what a rule goes by that is reached.
func seen(node *corev1.Node, g *gate.Gate, verdict gate.Verdict, now time.Time) string {
	value, there := node.Annotations[g.HeartbeatAnnotation()]
	hb, err := gate.ParseHeartbeat(value)
	boot := node.Status.NodeInfo.BootID
	switch verdict {
	case gate.Bypassed:
		return seenBypass(node, g, now)
	case gate.Absent:
		return either(there, "there is a heartbeat", "there is no annotation "+g.HeartbeatAnnotation())
	case gate.Malformed:
		if err != nil {
			return err.Error()
		}
		return "it can be read"
	case gate.OtherNode:
		return either(hb.NodeUID == node.UID, "it names this Node object", fmt.Sprintf("it names the Node object %s, this is %s", hb.NodeUID, node.UID))
	case gate.OtherBoot:
		if !gate.ValidBootID(boot) {
			return fmt.Sprintf("the Node shows no boot id (%q), so that none is its own", boot)
		}
		return either(hb.BootID == boot, "it names this boot", fmt.Sprintf("it names the boot %s, this is %s", hb.BootID, boot))
	case gate.NotReady:
		if hb.Ready {
			return "ready=true"
		}
		if failing := heartbeatOf(node, g, now).Failing; len(failing) > 0 {
			return "ready=false, failing: " + strings.Join(failing, ", ")
		}
		return "ready=false"
	case gate.FromFuture:
		return fmt.Sprintf("it is of %s, its ttl is %s, and it is %s", stamp(hb.Time), hb.TTL, stamp(now))
	case gate.Expired:
		return fmt.Sprintf("it is good until %s, and it is %s", stamp(hb.Time.Add(hb.TTL)), stamp(now))
	}
	return "none of the others holds"
}

func either(holds bool, yes, no string) string {
	if holds {
		return yes
	}
	return no
}

func seenBypass(node *corev1.Node, g *gate.Gate, now time.Time) string {
	value, there := node.Annotations[g.BypassAnnotation()]
	if !there {
		return "nobody has bypassed the gate"
	}
	bypass, err := gate.ParseBypass(value)
	switch {
	case err != nil:
		return err.Error()
	case now.Before(bypass.Until):
		return fmt.Sprintf("until %s: %s", stamp(bypass.Until), bypass.Reason)
	}
	return "the bypass is over since " + stamp(bypass.Until)
}
