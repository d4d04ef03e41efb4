package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodegate/nodegate/gate"
)

// TestConflistCheck_Defaults: whoever embeds the agent may leave out what a
// configuration may.
func TestConflistCheck_Defaults(t *testing.T) {
	const (
		plugin    = "nobodys-cni"
		entry     = `{"type":"` + plugin + `"}`
		unchained = `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}`
	)
	dir, binDir := t.TempDir(), t.TempDir()
	list, binary := filepath.Join(dir, "10-net.conflist"), filepath.Join(binDir, plugin)
	for path, text := range map[string]string{list: unchained, filepath.Join(dir, "."+plugin+"-entry"): entry, binary: ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(binary, 0o700); err != nil { //nolint:gosec // a plugin is run
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		expect := func(c gate.ConflistCheck, want string) {
			t.Helper()
			c.PluginType, c.Runtime = plugin, "containerd"
			check := ConflistCheck(c)
			_ = check.Check(t.Context(), nil) // the list has yet to settle
			pass(time.Second)
			if got := text(check.Check(t.Context(), nil)); (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("answer %q, want %q", got, want)
			}
		}
		expect(gate.ConflistCheck{}, gate.DefaultNetDir)
		expect(gate.ConflistCheck{Dir: dir}, filepath.Join(gate.DefaultBinDir, plugin))
		expect(gate.ConflistCheck{Dir: dir, BinDir: binDir}, "") // by the entry that was kept
	})
}
