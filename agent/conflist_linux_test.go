package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodegate/nodegate/gate"
	"github.com/nodegate/nodegate/internal/hold"
)

// TestAgent_AsksForAnotherStart where only that helps: a container goes on seeing a
// directory that was removed from the node, and not what took its place.
func TestAgent_AsksForAnotherStart(t *testing.T) {
	for name, looks := range map[string]func(a *Agent, dir string) error{
		"at lists": func(a *Agent, dir string) error {
			a.gates[0].probers[0].Check = ConflistCheck(gate.ConflistCheck{PluginType: "gate-cni", Runtime: "containerd", Dir: dir})
			return nil
		},
		"at a socket": func(a *Agent, dir string) (err error) {
			a.gates[0].probers[0].Check, err = SocketCheck(filepath.Join(dir, "s"))
			return err
		},
		"at a file": func(a *Agent, dir string) error {
			a.gates[0].probers[0].Check = newFileCheck(gate.FileCheck{Path: filepath.Join(dir, "f")})
			return nil
		},
		"for pods": func(a *Agent, dir string) error {
			a.gates[0].probers[0].Check = &lever{}
			a.pods = &hold.Server{Path: filepath.Join(dir, "cni.sock")}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = dir.Close() }()
			a, _ := alone(t)
			if err := looks(a, fmt.Sprintf("/proc/self/fd/%d", dir.Fd())); err != nil {
				t.Fatal(err)
			}
			health := func(want int) {
				t.Helper()
				_ = a.gates[0].probers[0].Check.Check(t.Context(), nil) // it fails in any case
				recorder := httptest.NewRecorder()
				a.ServeHealth(recorder, httptest.NewRequest(http.MethodGet, "/healthz", nil))
				if recorder.Code != want {
					t.Errorf("status %d, want %d: %s", recorder.Code, want, recorder.Body)
				}
			}
			health(http.StatusOK)
			if err := os.Remove(dir.Name()); err != nil {
				t.Fatal(err)
			}
			health(http.StatusInternalServerError)
		})
	}
}
