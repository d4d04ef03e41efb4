package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/utils/clock"
)

// unansweredLimit is how many requests in a row must remain without an answer for
// the API server to count as unreachable: one may meet a connection that is
// stale, or a dead backend of a load balancer.
const unansweredLimit = 3

// reach tells once when the API server becomes unreachable, and once when it is
// back. Whatever it answers, it is reachable.
type reach struct {
	log   *slog.Logger
	clock clock.PassiveClock

	mu         sync.Mutex
	unanswered int
	since      time.Time
}

// note takes note of whether a request was answered.
func (r *reach) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		if r.unanswered >= unansweredLimit {
			r.log.Info("API server is reachable again", "after", r.clock.Since(r.since).Round(time.Second))
		}
		r.unanswered = 0
		return
	}
	if r.unanswered == 0 {
		r.since = r.clock.Now()
	}
	if r.unanswered++; r.unanswered == unansweredLimit {
		r.log.Warn("API server is unreachable, going on without it", "error", err)
	}
}

// wrap returns a transport that sends requests by rt and takes note of them. It
// fits the Wrap method of a rest.Config.
func (r *reach) wrap(rt http.RoundTripper) http.RoundTripper {
	return &reachTransport{RoundTripper: rt, reach: r}
}

type reachTransport struct {
	http.RoundTripper
	reach *reach
}

var _ utilnet.RoundTripperWrapper = (*reachTransport)(nil)

// RoundTrip implements [http.RoundTripper].
func (t *reachTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := t.RoundTripper.RoundTrip(request)
	if err == nil || !errors.Is(request.Context().Err(), context.Canceled) {
		t.reach.note(err)
	}
	return answer, err
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *reachTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// refusals tells why the Node cannot be watched, if the API server says so, once.
// What it does not answer is told elsewhere, and a watch that has lasted long
// enough ends with an error that means nothing.
type refusals struct {
	log  *slog.Logger
	last metav1.StatusReason
}

func (r *refusals) note(err error) {
	reason := apierrors.ReasonForError(err)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || reason == "" || r.last == reason {
		return
	}
	r.last = reason
	r.log.Warn("API server refuses to show the Node, trying again", "error", err)
}
