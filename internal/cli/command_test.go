package cli

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/nodegate/nodegate/test/golden"
)

// run runs a command line and returns what it wrote and its exit code.
func run(t *testing.T, args ...string) (out, errOut string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = Run(t.Context(), genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr}, args)
	return stdout.String(), stderr.String(), code
}

func TestHelp(t *testing.T) {
	var all strings.Builder
	for _, command := range [][]string{
		nil,
		{"status"}, {"explain"}, {"heartbeat"}, {"config", "validate"}, {"version"},
		{"pause"}, {"observe"}, {"resume"}, {"bypass"},
		{"render"}, {"install"}, {"upgrade"}, {"prune"}, {"uninstall"},
	} {
		out, errOut, code := run(t, append(command, "--help")...)
		if code != codeDone || errOut != "" {
			t.Errorf("%v --help: exit code %d, %s", command, code, errOut)
		}
		if len(command) > 0 { // kubectl's own flags are the same everywhere
			out, _, _ = strings.Cut(out, "\nGlobal Flags:")
			out = "\n---- " + strings.Join(command, " ") + "\n\n" + out
		}
		all.WriteString(out)
	}
	golden.Expect(t, "testdata/help.txt", []byte(all.String()))
}

// TestRun_Refuses: what cannot be done is said before any cluster is asked.
func TestRun_Refuses(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no kubeconfig":           {[]string{"pause"}, "there is no kubeconfig"},
		"a missing one":           {[]string{"pause", "--kubeconfig=/nonexistent"}, "/nonexistent"},
		"nobody answers":          {[]string{"status", "--server=https://127.0.0.1:1"}, "cannot be asked"},
		"a mistyped command":      {[]string{"stauts"}, `unknown command "stauts", is it status?`},
		"an unknown flag":         {[]string{"status", "--all"}, "unknown flag: --all; see kubectl nodegate status --help"},
		"a form of others":        {[]string{"explain", "n", "-o", "name"}, `-o is "name", it must be one of json`},
		"nobody names a cluster":  {[]string{"status"}, "/nonexistent: name one by --kubeconfig"},
		"an unknown command":      {[]string{"stop"}, `unknown command "stop"; see kubectl nodegate --help`},
		"an empty name":           {[]string{"explain", ""}, "the name of the node is empty"},
		"an empty name, decoded":  {[]string{"heartbeat", "node/"}, "the name of the node is empty"},
		"an empty name, bypassed": {[]string{"bypass", "", "--clear"}, "the name of the node is empty"},
		"no node":                 {[]string{"bypass", "--clear"}, "name one node, not 0: kubectl nodegate bypass NODE"},
		"nothing to do":           {[]string{"bypass", "n"}, "say for how long and why"},
		"no reason":               {[]string{"bypass", "n", "--for=1h"}, "--reason is missing"},
		"a form that is none":     {[]string{"status", "-o", "xml"}, `-o is "xml", it must be one of wide, name, json`},
		"a selector that is none": {[]string{"status", "-l", "!!"}, "--selector"},
		"no such file":            {[]string{"config", "validate", "/nonexistent"}, "/nonexistent"},
		"no time given":           {[]string{"bypass", "n", "--reason=x"}, "--for is missing"},
		"an empty reason":         {[]string{"bypass", "n", "--for=1h", "--reason="}, "--reason must be"},
		"an odd reason":           {[]string{"bypass", "n", "--for=1h", "--reason=ü"}, "--reason must be printable ASCII"},
		"two days":                {[]string{"bypass", "n", "--for=48h", "--reason=x"}, "--for is 48h0m0s, it must be from 1s to 24h0m0s"},
		"no time":                 {[]string{"bypass", "n", "--for=0s", "--reason=x"}, "--for is 0s"},
		"both":                    {[]string{"bypass", "n", "--clear", "--for=1h", "--reason=x"}, "--clear ends a bypass"},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := run(t, tc.args...)
			if code != codeFailed || out != "" || !strings.Contains(errOut, tc.want) {
				t.Errorf("exit code %d, out %q, err %q, want an error of %q", code, out, errOut, tc.want)
			}
		})
	}
}
