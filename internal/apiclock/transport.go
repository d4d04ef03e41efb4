package apiclock

import (
	"net/http"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Dates outside these years are those of a clock that was never set.
const minYear, maxYear = 2020, 2099

// Wrap returns a transport that sends requests by rt and learns from the
// answers. It fits the Wrap method of a rest.Config.
func (c *Clock) Wrap(rt http.RoundTripper) http.RoundTripper {
	return &transport{RoundTripper: rt, clock: c}
}

type transport struct {
	http.RoundTripper
	clock *Clock
}

var _ utilnet.RoundTripperWrapper = (*transport)(nil)

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	sent := t.clock.elapsed()
	answer, err := t.RoundTripper.RoundTrip(request)
	if err != nil {
		return answer, err
	}
	if date, ok := dateOf(answer.Header); ok {
		t.clock.observe(sent, t.clock.elapsed(), date)
	}
	return answer, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// dateOf is when the answer was made. One out of a cache, which has an Age, was
// made at another time than it was sent.
func dateOf(header http.Header) (time.Time, bool) {
	if header.Get("Age") != "" {
		return time.Time{}, false
	}
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil || date.Year() < minYear || date.Year() > maxYear {
		return time.Time{}, false
	}
	return date, true
}
