package gate

import (
	"fmt"
	"strings"
	"time"
)

// MaxBypass is how far ahead of the latest stamp on the Node a bypass may reach.
const MaxBypass = 24 * time.Hour

// Bypass opens a gate until a point in time, for a reason a person gave.
type Bypass struct {
	// Until is when the bypass ends, in whole seconds. At that very second it is
	// over.
	Until time.Time
	// Reason is printable ASCII.
	Reason string
}

// ParseBypass reads a bypass annotation's value. The error says what is wrong
// with it.
func ParseBypass(value string) (Bypass, error) {
	if err := matchAnnotation(value, bypassRegexp(), "until=… reason=…"); err != nil {
		return Bypass{}, fmt.Errorf("parsing bypass: %w", err)
	}
	until, reason, _ := strings.Cut(value[len("until="):], " reason=")
	at, err := time.Parse(TimeLayout, until)
	if err != nil {
		return Bypass{}, fmt.Errorf("parsing bypass time: %w", err)
	}
	return Bypass{Until: at, Reason: reason}, nil
}

// Format writes the bypass as an annotation's value that [ParseBypass] reads
// back to an equal Bypass, or says why it cannot be written.
func (b Bypass) Format() (string, error) {
	if b.Until.Nanosecond() != 0 {
		return "", fmt.Errorf("formatting bypass: time %s is not in whole seconds", b.Until)
	}
	value := fmt.Sprintf("until=%s reason=%s", b.Until.UTC().Format(TimeLayout), b.Reason)
	if _, err := ParseBypass(value); err != nil {
		return "", fmt.Errorf("formatting bypass: %w", err)
	}
	return value, nil
}
