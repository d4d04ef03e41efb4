package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"
)

// answering answers a request, or fails it.
type answering struct{ err error }

func (a *answering) RoundTrip(*http.Request) (*http.Response, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: http.StatusInternalServerError, Body: http.NoBody}, nil
}

// TestReach: an outage is told once, and its end; an answer of whatever kind ends
// it, and what the agent itself gave up is none.
func TestReach(t *testing.T) {
	var log bytes.Buffer
	clock := testclock.NewFakePassiveClock(testNow())
	r := &reach{log: slog.New(slog.NewTextHandler(&log, nil)), clock: clock}
	server := &answering{}
	wire := r.wrap(server)
	request := func(ctx context.Context, err error, times int) {
		t.Helper()
		server.err = err
		for range times {
			answer, got := wire.RoundTrip(httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			if !errors.Is(got, err) {
				t.Errorf("error %v, want %v", got, err)
			}
			if got == nil {
				_ = answer.Body.Close()
			}
		}
	}
	expect := func(lines int, last string) {
		t.Helper()
		got := strings.Split(strings.TrimSpace(log.String()), "\n")
		if log.Len() == 0 {
			got = nil
		}
		if len(got) != lines || lines > 0 && !strings.Contains(got[lines-1], last) {
			t.Fatalf("the log has %d lines, want %d, the last with %q:\n%s", len(got), lines, last, log.String())
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	request(t.Context(), nil, 1)
	request(over, context.Canceled, 10)
	for range 5 {
		request(t.Context(), errDown, unansweredLimit-1)
		request(t.Context(), nil, 1)
	}
	expect(0, "")
	request(t.Context(), errDown, 100)
	expect(1, `level=WARN msg="API server is unreachable, going on without it" error=down`)
	clock.SetTime(testNow().Add(90 * time.Second))
	request(t.Context(), nil, 100)
	expect(2, `level=INFO msg="API server is reachable again" after=1m30s`)
	request(t.Context(), errDown, unansweredLimit)
	expect(3, "unreachable")
}

// TestRefusals: a refusal is told once, and nothing of watches that merely end.
func TestRefusals(t *testing.T) {
	var log bytes.Buffer
	r := &refusals{log: slog.New(slog.NewTextHandler(&log, nil))}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "node-a", errors.New("no right"))
	for range 3 {
		r.note(errDown)
		r.note(apierrors.NewResourceExpired("too old"))
		r.note(forbidden)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=WARN msg="API server refuses to show the Node, trying again"`) {
		t.Errorf("log:\n%s", got)
	}
}
