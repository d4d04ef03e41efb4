package cli

import (
	"strings"
	"testing"

	"github.com/nodegate/nodegate/gate"
)

const head = "apiVersion: nodegate.io/v1alpha1\nkind: Configuration\n"

func TestSetMode(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"in the middle": {
			"# Ours.\n" + head + "mode:   observe   # for now\n\ngates: # one\n- {name: a, taint: {key: a/b}}\n",
			"# Ours.\n" + head + "mode:   paused   # for now\n\ngates: # one\n- {name: a, taint: {key: a/b}}\n",
		},
		"at the end, without one": {head + "mode: enforce", head + "mode: paused"},
		"quoted":                  {head + "mode: 'observe' # 'x'\n", head + "mode: 'paused' # 'x'\n"},
		"JSON": {
			`{"apiVersion": "nodegate.io/v1alpha1", "kind": "Configuration", "mode": "observe"}`,
			`{"apiVersion": "nodegate.io/v1alpha1", "kind": "Configuration", "mode": "paused"}`,
		},
		"beyond ASCII":    {"# ü\n{apiVersion: nodegate.io/v1alpha1, \"k\\u0069nd\": Configuration, mode: observe} # ö\n", "# ü\n{apiVersion: nodegate.io/v1alpha1, \"k\\u0069nd\": Configuration, mode: paused} # ö\n"},
		"none":            {"# Ours.\n---\n# It.\n" + head, "# Ours.\n---\n# It.\nmode: paused\n" + head},
		"carriage return": {"# x\r\n" + strings.ReplaceAll(head, "\n", "\r\n") + "mode: observe\r\n", "# x\r\n" + strings.ReplaceAll(head, "\n", "\r\n") + "mode: paused\r\n"},
		"nothing to do":   {head + "mode: &m paused\n", head + "mode: &m paused\n"},
		"another's mode":  {head + "mode: observe\ngates: [{name: mode, taint: {key: a/mode, value: observe}}]\n", head + "mode: paused\ngates: [{name: mode, taint: {key: a/mode, value: observe}}]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := setMode(tc.text, gate.ModePaused)
			if err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, tc.want)
			}
			back, err := gate.ParseConfiguration([]byte(got))
			if err != nil || back.Mode != gate.ModePaused {
				t.Errorf("mode is %v, error %v", back, err)
			}
		})
	}
}

// TestSetMode_Refuses: what it cannot change without risk is left to a person.
func TestSetMode_Refuses(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"invalid":        {head + "mode: sometimes\n", "it is not valid"},
		"JSON, absent":   {`{"apiVersion": "nodegate.io/v1alpha1", "kind": "Configuration"}`, "none can be added"},
		"an anchor":      {head + "mode: &m observe\n", "no plain word"},
		"a tag":          {head + "mode: !!str observe\n", "no plain word"},
		"a block":        {head + "mode: |-\n  observe\n", "no plain word"},
		"escapes":        {head + `mode: "obs\u0065rve"` + "\n", "no plain word"},
		"an empty start": {"---\n---\n" + head, "none can be added"},
		"an odd break":   {"# a\u2028# b\n" + head + "mode: observe\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := setMode(tc.text, gate.ModePaused)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, text %q, want an error of %q", err, got, tc.want)
			}
		})
	}
}
