package agent

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodegate/nodegate/gate"
)

// view is all that a decision rests on.
type view struct {
	// node is the agent's own, as last seen; nil if there is none.
	node *corev1.Node
	// turn is when it was seen.
	turn uint64
	boot bootID
	// now is the API server's time.
	now time.Time
	// local is this machine's time, by which repeats are paced.
	local    time.Time
	podUID   types.UID
	sequence uint64
	// spread, from 0 to 1, is how far this interval is stretched.
	spread float64
	gates  []gateView
}

// gateView is a gate's verdict and what was done about it before.
type gateView struct {
	verdict
	pace pace
	// saidNo: the last that this process wrote was ready=false.
	saidNo bool
}

// decision is what to write to the Node, in one write for all gates, or how long
// to wait if nothing happens.
type decision struct {
	// after is how long to wait; zero: write now.
	after  time.Duration
	writes []gateWrite
}

// gateWrite is a gate's part of a write.
type gateWrite struct {
	verdict
	// opens: the taint is removed.
	opens bool
	// repeats: it may repeat what others undid, and is paced.
	repeats bool
}

// idle is how long to wait where nothing is known to come.
const idle = time.Minute

// decide says what to do about the verdicts. If any gate needs a write, all have
// their part in it.
func decide(v view) decision {
	d := decision{after: idle}
	if v.node == nil {
		return d
	}
	for _, g := range v.gates {
		if !g.known {
			continue
		}
		in, write := v.weigh(g)
		d.after = min(d.after, in)
		d.writes = append(d.writes, write)
	}
	if d.after > 0 {
		d.writes = nil
	}
	return d
}

// weigh says how soon a gate needs a write, and what its part in one is.
func (v view) weigh(g gateView) (time.Duration, gateWrite) {
	hb, own := ownHeartbeat(g.gate, v.node, v.boot)
	turned := !own || hb.Ready != g.ready
	// What this process has not said before is told at once, if it closes: the
	// write that tells it arms, and voids one that opens, of an agent before this
	// one, which is still on its way. All else may be a repeat of what others undo.
	news := !g.ready && !g.saidNo
	hold := g.pace.wait(v.local)

	write := gateWrite{verdict: g.verdict, opens: g.opens && g.armed && hold == 0}
	write.repeats = write.opens || turned && !news
	switch {
	case news:
		return 0, write
	case turned || g.opens && g.armed:
		return min(hold, v.due(hb, own)), write
	}
	return v.due(hb, own), write
}

// due is how soon the heartbeat is written again, whatever else happens.
func (v view) due(hb gate.Heartbeat, own bool) time.Duration {
	if !own {
		return idle
	}
	if hb.Time.After(v.now.Add(maxAhead)) {
		return 0
	}
	interval := intervalOf(v.node)
	stretched := interval + time.Duration(v.spread*jitter*float64(interval))
	// Where the cadence has become slower, the heartbeat there has too short a ttl
	// to wait for so long.
	return max(0, hb.Time.Add(min(stretched, hb.TTL/2)).Sub(v.now))
}

// patch is the one write that carries the decision out.
func (v view) patch(d decision) ([]byte, error) {
	var beats []annotation
	var opening []*gate.Gate
	for _, w := range d.writes {
		value, err := v.heartbeat(w.verdict).Format()
		if err != nil {
			return nil, err
		}
		beats = append(beats, annotation{w.gate.HeartbeatAnnotation(), value})
		if w.opens {
			opening = append(opening, w.gate)
		}
	}
	p := newNodePatch(v.node)
	p.annotate(v.node, beats)
	p.removeTaints(v.node, opening)
	return p.encode()
}

func (v view) heartbeat(g verdict) gate.Heartbeat {
	hb := gate.Heartbeat{
		Ready:   g.ready,
		Time:    v.now.UTC().Truncate(time.Second),
		TTL:     ttlOf(intervalOf(v.node)),
		BootID:  v.boot.inHeartbeat(),
		NodeUID: v.node.UID,
	}
	if failing := g.failingToken(); failing != "" {
		hb.Extra = append(hb.Extra, gate.Token{Key: gate.TokenFailing, Value: failing})
	}
	if v.podUID != "" {
		hb.Extra = append(hb.Extra, gate.Token{Key: gate.TokenPod, Value: string(v.podUID)})
	}
	hb.Extra = append(hb.Extra, gate.Token{Key: gate.TokenSequence, Value: strconv.FormatUint(v.sequence, 10)})
	return hb
}
