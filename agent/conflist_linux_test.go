package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/nodegate/nodegate/gate"
)

// TestAgent_AsksForAnotherStart where only that helps: a container goes on seeing a
// directory that was removed from the node, and not what took its place.
func TestAgent_AsksForAnotherStart(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	check := ConflistCheck(gate.ConflistCheck{
		PluginType: "gate-cni", Runtime: "containerd", Dir: fmt.Sprintf("/proc/self/fd/%d", dir.Fd()),
	})
	a, _ := alone(t)
	a.gates[0].probers[0].Check = check
	health := func(want int) {
		t.Helper()
		_ = check.Check(t.Context(), nil) // it fails in any case
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
}
