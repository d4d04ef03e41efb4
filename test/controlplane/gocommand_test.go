package controlplane

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestExplain(t *testing.T) {
	tests := map[string]struct{ output, want string }{
		"a full disk":   {"link: writing /c/kubectl: no space left on device", "the disk is full"},
		"no proxy":      {`Get "https://proxy.example/x": dial tcp: lookup proxy.example: no such host`, "could not be fetched"},
		"proxy off":     {"module lookup disabled by GOPROXY=off", "could not be fetched"},
		"a stale sum":   {"missing go.sum entry for module", "go mod tidy"},
		"out of memory": {"k8s.io/x: /go/tool/compile: signal: killed", "memory"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := explain(&commandError{err: errors.New("exit status 1"), output: tc.output})
			expectError(t, err, "exit status 1", tc.output, tc.want)
		})
	}

	t.Run("what nobody has advice for stays as it is", func(t *testing.T) {
		err := &commandError{err: errors.New("exit status 1"), output: "x.go:1: undefined: y"}
		if got := explain(err).Error(); got != err.Error() {
			t.Errorf("got %q, want %q", got, err)
		}
	})
}

func TestTail(t *testing.T) {
	var long strings.Builder
	for i := range 100 {
		fmt.Fprintln(&long, "line", i)
	}
	got := strings.Split(tail(long.String()), "\n")
	if len(got) != 21 || got[0] != "[...]" || got[1] != "line 80" || got[20] != "line 99" {
		t.Errorf("got %q", got)
	}
	if got := tail("one\ntwo\n"); got != "one\ntwo" {
		t.Errorf("got %q, want all of a short output", got)
	}
}
