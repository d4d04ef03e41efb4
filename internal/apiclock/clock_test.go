package apiclock

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 29, 11, 0, 0, 0, time.UTC)

// world is a local wall clock, a monotonic clock and an API server's clock that
// tests move by hand.
type world struct {
	mu             sync.Mutex
	local, server  time.Time
	elapsed        time.Duration
	clock          *Clock
	requestLatency time.Duration
	answerLatency  time.Duration
}

func newWorld(ahead time.Duration) *world {
	w := &world{local: start, server: start.Add(ahead), requestLatency: time.Millisecond, answerLatency: time.Millisecond}
	w.clock = &Clock{
		wall:    func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.local },
		elapsed: func() time.Duration { w.mu.Lock(); defer w.mu.Unlock(); return w.elapsed },
	}
	return w
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.local, w.server, w.elapsed = w.local.Add(d), w.server.Add(d), w.elapsed+d
}

// RoundTrip answers as the API server does.
func (w *world) RoundTrip(*http.Request) (*http.Response, error) {
	w.pass(w.requestLatency)
	header := http.Header{}
	header.Set("Date", w.server.UTC().Format(http.TimeFormat))
	w.pass(w.answerLatency)
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: http.NoBody}, nil
}

func (w *world) ask(t *testing.T, rt http.RoundTripper) {
	t.Helper()
	answer, err := w.clock.Wrap(rt).RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
	if err != nil {
		t.Fatalf("asking: %v", err)
	}
	answer.Body.Close()
}

func (w *world) expectWithin(t *testing.T, tolerance time.Duration) {
	t.Helper()
	if off := w.clock.Now().Sub(w.server).Abs(); off > tolerance {
		t.Errorf("clock is off by %s, want at most %s", off, tolerance)
	}
}

func TestClock_ShowsLocalTimeUntilAnAnswer(t *testing.T) {
	w := newWorld(time.Hour)
	if got := w.clock.Now(); !got.Equal(start) {
		t.Errorf("Now() = %s, want local time %s", got, start)
	}
	if offset, ok := w.clock.Offset(); ok || offset != 0 {
		t.Errorf("Offset() = %s, %t, want none", offset, ok)
	}
}

func TestClock_IsWithinASecondAfterOneAnswer(t *testing.T) {
	for _, ahead := range []time.Duration{0, 999 * time.Millisecond, -10 * time.Minute, 24 * time.Hour, 30 * 365 * 24 * time.Hour} {
		w := newWorld(ahead)
		w.ask(t, w)
		w.expectWithin(t, resolution/2+2*time.Millisecond)
		offset, ok := w.clock.Offset()
		if !ok || (offset-ahead).Abs() > resolution/2+2*time.Millisecond {
			t.Errorf("Offset() = %s, %t, want about %s", offset, ok, ahead)
		}
	}
}

func TestClock_AnswersNarrowItToARoundTrip(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	w := newWorld(-3*time.Hour - 123*time.Millisecond)
	for range 400 {
		w.pass(time.Duration(random.Int64N(int64(2 * time.Second))))
		w.ask(t, w)
		w.expectWithin(t, resolution/2+2*time.Millisecond)
	}
	w.expectWithin(t, 50*time.Millisecond)
}

func TestClock_ASlowAnswerDoesNotWidenIt(t *testing.T) {
	w := newWorld(time.Minute)
	w.ask(t, w)
	for _, slow := range []*time.Duration{&w.requestLatency, &w.answerLatency} {
		usual := *slow
		*slow = 20 * time.Second
		for range 2 * outvoted {
			w.ask(t, w)
			w.expectWithin(t, resolution/2+150*time.Millisecond)
		}
		*slow = usual
	}
}

func TestClock_ALocalStepDoesNotMoveIt(t *testing.T) {
	w := newWorld(0)
	w.ask(t, w)
	before := w.clock.Now()
	w.mu.Lock()
	w.local = w.local.Add(-48 * time.Hour)
	w.mu.Unlock()
	if got := w.clock.Now(); !got.Equal(before) {
		t.Errorf("Now() moved from %s to %s", before, got)
	}
	if offset, _ := w.clock.Offset(); (offset - 48*time.Hour).Abs() > time.Second {
		t.Errorf("Offset() = %s, want about 48h", offset)
	}
}

func TestClock_DriftIsFollowed(t *testing.T) {
	w := newWorld(0)
	for range 24 * 60 {
		w.ask(t, w)
		if w.clock.rival.answers != 0 {
			t.Fatal("an answer contradicts what is known, though the clocks part slowly")
		}
		w.pass(time.Minute)
		w.server = w.server.Add(20 * time.Millisecond) // 333 ppm
	}
	w.ask(t, w)
	w.expectWithin(t, time.Second)
}

// dated answers with a fixed header whatever the time.
type dated http.Header

func (d dated) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header(d), Body: http.NoBody}, nil
}

func TestClock_IgnoresNonsense(t *testing.T) {
	tests := map[string]http.Header{
		"no date":            {},
		"no time":            {"Date": {"yesterday"}},
		"a clock never set":  {"Date": {"Thu, 01 Jan 1970 00:00:10 GMT"}},
		"a far future":       {"Date": {"Fri, 01 Jan 2100 00:00:00 GMT"}},
		"an answer of cache": {"Date": {"Sun, 29 Nov 2026 09:00:00 GMT"}, "Age": {"7200"}},
	}
	for name, header := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(0)
			for range 2 * outvoted {
				w.ask(t, dated(header))
			}
			if offset, ok := w.clock.Offset(); ok {
				t.Errorf("learnt an offset of %s", offset)
			}
		})
	}
}

func TestClock_OneWrongDateDoesNotMoveIt(t *testing.T) {
	w := newWorld(time.Minute)
	w.ask(t, w)
	wrong := dated{"Date": {start.Add(-time.Hour).Format(http.TimeFormat)}}
	for range 10 {
		for range outvoted - 1 {
			w.ask(t, wrong)
		}
		w.ask(t, w)
		w.expectWithin(t, time.Second)
	}
}

func TestClock_WrongDatesThatDisagreeDoNotMoveIt(t *testing.T) {
	w := newWorld(time.Minute)
	w.ask(t, w)
	for i := range 20 {
		w.ask(t, dated{"Date": {start.Add(-time.Duration(i+1) * time.Hour).Format(http.TimeFormat)}})
	}
	w.expectWithin(t, time.Second)
}

func TestClock_FollowsAServerWhoseClockWasSet(t *testing.T) {
	w := newWorld(0)
	w.ask(t, w)
	w.server = w.server.Add(-5 * time.Minute)
	for range outvoted {
		w.ask(t, w)
	}
	w.expectWithin(t, time.Second)
}

func TestClock_AWrongFirstDateIsOutvoted(t *testing.T) {
	w := newWorld(0)
	w.ask(t, dated{"Date": {start.Add(time.Hour).Format(http.TimeFormat)}})
	for range outvoted {
		w.ask(t, w)
	}
	w.expectWithin(t, time.Second)
}

type failing struct{}

func (failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("no route") }

func TestTransport_PassesErrorsOn(t *testing.T) {
	c := New()
	if _, err := c.Wrap(failing{}).RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil)); err == nil { //nolint:bodyclose // there is none
		t.Error("the error was swallowed")
	}
}

func TestClock_LearnsFromARealServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, strings.NewReader("hello"))
	}))
	defer server.Close()
	c := New()
	client := http.Client{Transport: c.Wrap(http.DefaultTransport)}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			answer, err := client.Get(server.URL)
			if err != nil {
				t.Errorf("asking: %v", err)
				return
			}
			answer.Body.Close()
			c.Now()
		})
	}
	wg.Wait()
	offset, ok := c.Offset()
	if !ok || offset.Abs() > time.Second {
		t.Errorf("Offset() = %s, %t, want one below a second", offset, ok)
	}
	if since := c.Since(time.Now().Add(-time.Hour)); (since - time.Hour).Abs() > time.Second {
		t.Errorf("Since(an hour ago) = %s", since)
	}
}
