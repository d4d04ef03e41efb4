package gate

import (
	"slices"
	"strings"
	"time"
)

// Retired is a gate that was once configured under this name with this taint. The
// list of them is the value of [RetiredAnnotation].
type Retired struct{ Name, TaintKey string }

// FormatRetired writes the value of [RetiredAnnotation]: "name=key", blanks between.
func FormatRetired(gates []Retired) string {
	pairs := make([]string, len(gates))
	for i, r := range gates {
		pairs[i] = r.Name + "=" + r.TaintKey
	}
	return strings.Join(pairs, " ")
}

// ParseRetired reads it. What is no pair is passed over.
func ParseRetired(value string) []Retired {
	var gates []Retired
	eachPair(value, func(name, key string) { gates = append(gates, Retired{name, key}) })
	return gates
}

// FormatAdded writes the value of [AddedAnnotation]: "name=time", blanks between.
func FormatAdded(times map[string]time.Time) string {
	pairs := make([]string, 0, len(times))
	for name, at := range times {
		pairs = append(pairs, name+"="+at.UTC().Format(TimeLayout))
	}
	slices.Sort(pairs)
	return strings.Join(pairs, " ")
}

// ParseAdded reads it. What is no pair, or no time, is passed over.
func ParseAdded(value string) map[string]time.Time {
	times := map[string]time.Time{}
	eachPair(value, func(name, text string) {
		if at, err := time.Parse(TimeLayout, text); err == nil {
			times[name] = at
		}
	})
	return times
}

func eachPair(value string, do func(name, text string)) {
	for pair := range strings.FieldsSeq(value) {
		if name, text, ok := strings.Cut(pair, "="); ok && name != "" && text != "" {
			do(name, text)
		}
	}
}
