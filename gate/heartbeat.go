package gate

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// MaxAnnotationBytes is the longest heartbeat or bypass value. It is tested
	// before anything else: matching a value of 100 kB would cost an API server
	// half a minute.
	MaxAnnotationBytes = 512

	// TimeLayout is how every time is written: UTC, whole seconds.
	TimeLayout = "2006-01-02T15:04:05Z"

	// MinTTL and MaxTTL bound the time a heartbeat may claim to be worth.
	MinTTL = time.Second
	MaxTTL = 900 * time.Second

	// timeExpression matches the times that exist in the years 2020 to 2099 and
	// nothing else, so that what matches can be parsed without an error in Go and
	// in CEL, where nothing can absorb one. Every fourth year of them is a leap
	// year.
	timeExpression = `(?:20[2-9][0-9]-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])` +
		`|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)` +
		`|02-(?:0[1-9]|1[0-9]|2[0-8]))` +
		`|20(?:[2468][048]|[3579][26])-02-29)` +
		`T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z`

	// HeartbeatExpression is the whole grammar of a heartbeat value, in RE2, for
	// Go and CEL alike. Its first six tokens have fixed places; what follows is
	// never judged.
	HeartbeatExpression = `^v=1 ready=(?:true|false) time=` + timeExpression +
		` ttl=(?:[1-9][0-9]?|[1-8][0-9][0-9]|900)s` +
		` boot=[!-~]+ node=[!-~]+(?: [!-<>-~]+=[!-~]*)*$`

	// BypassExpression is the whole grammar of a bypass value, in RE2.
	BypassExpression = `^until=` + timeExpression + ` reason=[ -~]+$`
)

// MinTime and MaxTime are the earliest and the latest time, in [TimeLayout], that
// count as a time at all; everything
// outside is a clock that was never set, or forged.
const (
	MinTime = "2020-01-01T00:00:00Z"
	MaxTime = "2099-12-31T23:59:59Z"
)

// Heartbeat is what a node's agent says of itself: whether it serves, in which
// boot, of which Node object, as of when, and for how long that is worth
// believing.
type Heartbeat struct {
	// Ready says that every check of the gate passes.
	Ready bool
	// Time is API-server time, in whole seconds.
	Time time.Time
	// TTL is how long after Time the heartbeat is fresh; whole seconds, from
	// [MinTTL] to [MaxTTL].
	TTL time.Duration
	// BootID is the Node's status.nodeInfo.bootID.
	BootID string
	// NodeUID is the Node's UID.
	NodeUID types.UID
	// Extra are tokens for people and other programs, never judged.
	Extra []Token
}

// Token is one key=value of a heartbeat beyond what is judged.
type Token struct {
	Key, Value string
}

// Well-known keys of [Token].
const (
	TokenFailing  = "failing"
	TokenPod      = "pod"
	TokenSequence = "seq"
)

// ParseHeartbeat reads a heartbeat annotation's value. The error says what is
// wrong with it; the value is cut short in it.
func ParseHeartbeat(value string) (Heartbeat, error) {
	if err := matchAnnotation(value, heartbeatRegexp(), "v=1 ready=… time=… ttl=…s boot=… node=…"); err != nil {
		return Heartbeat{}, fmt.Errorf("parsing heartbeat: %w", err)
	}
	tokens := strings.Split(value, " ")
	at, err := time.Parse(TimeLayout, tokens[2][len("time="):])
	if err != nil {
		return Heartbeat{}, fmt.Errorf("parsing heartbeat time: %w", err)
	}
	ttl, err := time.ParseDuration(tokens[3][len("ttl="):])
	if err != nil {
		return Heartbeat{}, fmt.Errorf("parsing heartbeat ttl: %w", err)
	}
	hb := Heartbeat{
		Ready:   tokens[1] == "ready=true",
		Time:    at,
		TTL:     ttl,
		BootID:  tokens[4][len("boot="):],
		NodeUID: types.UID(tokens[5][len("node="):]),
	}
	for _, token := range tokens[6:] {
		key, val, _ := strings.Cut(token, "=")
		hb.Extra = append(hb.Extra, Token{Key: key, Value: val})
	}
	return hb, nil
}

// Format writes the heartbeat as an annotation's value, or says why it cannot
// be written: every value that Format returns is one that [ParseHeartbeat]
// reads back to an equal Heartbeat.
func (h Heartbeat) Format() (string, error) {
	if h.TTL%time.Second != 0 {
		return "", fmt.Errorf("formatting heartbeat: ttl %s is not in whole seconds", h.TTL)
	}
	if h.Time.Nanosecond() != 0 {
		return "", fmt.Errorf("formatting heartbeat: time %s is not in whole seconds", h.Time)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "v=1 ready=%t time=%s ttl=%ds boot=%s node=%s",
		h.Ready, h.Time.UTC().Format(TimeLayout), int64(h.TTL/time.Second), h.BootID, h.NodeUID)
	for _, token := range h.Extra {
		fmt.Fprintf(&b, " %s=%s", token.Key, token.Value)
	}
	back, err := ParseHeartbeat(b.String())
	if err != nil {
		return "", fmt.Errorf("formatting heartbeat: %w", err)
	}
	if !back.equal(h) {
		return "", fmt.Errorf("formatting heartbeat: a token of %q holds a blank or an equals sign", shorten(b.String()))
	}
	return b.String(), nil
}

func (h Heartbeat) equal(o Heartbeat) bool {
	if h.Ready != o.Ready || !h.Time.Equal(o.Time) || h.TTL != o.TTL || h.BootID != o.BootID ||
		h.NodeUID != o.NodeUID || len(h.Extra) != len(o.Extra) {
		return false
	}
	for i := range h.Extra {
		if h.Extra[i] != o.Extra[i] {
			return false
		}
	}
	return true
}

// matchAnnotation tests length, then form.
func matchAnnotation(value string, form *regexp.Regexp, example string) error {
	if n := len(value); n > MaxAnnotationBytes {
		return fmt.Errorf("value has %d bytes, at most %d are allowed", n, MaxAnnotationBytes)
	}
	if !form.MatchString(value) {
		return fmt.Errorf("value %q is not of the form %q", shorten(value), example)
	}
	return nil
}

// shorten keeps messages and logs bounded whatever is on a Node.
func shorten(s string) string {
	const limit = 120
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}
