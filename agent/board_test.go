package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"

	"github.com/nodegate/nodegate/gate"
)

// alone is an agent without an API server, and its log without times.
func alone(t *testing.T) (*Agent, *bytes.Buffer) {
	t.Helper()
	boot := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(boot, []byte(thisBoot), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	a, err := New(Options{
		Config:     &rest.Config{Host: "localhost"},
		NodeName:   "node-a",
		BootIDPath: boot,
		Gates: []Gate{{Gate: gate.DefaultGate(), Probes: []Probe{
			{Name: "socket", Check: &lever{}, Dwell: time.Hour, Timeout: time.Second},
			{Name: "conflist", Check: &lever{}, Timeout: time.Second},
		}}},
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey || a.Key == "node" {
					return slog.Attr{}
				}
				return a
			},
		})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return a, &log
}

// answer lets the gate's checks answer.
func (a *Agent) answer(reasons ...error) {
	for i, reason := range reasons {
		a.gates[0].probers[i].record(reason)
	}
}

func TestAgent_TellsEachChangeOnce(t *testing.T) {
	a, log := alone(t)
	look := func(want ...string) {
		t.Helper()
		for range 3 {
			a.publish(a.gather())
		}
		var got []string
		for line := range strings.Lines(log.String()) {
			got = append(got, strings.TrimSpace(line))
		}
		log.Reset()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	}
	look()
	a.answer(nil, errDown)
	look(`level=INFO msg="Check changed its state" gate=agent check=socket from=unknown to=passing reason=""`,
		`level=INFO msg="Check changed its state" gate=agent check=conflist from=unknown to=failing reason=down`)
	s := newScene().armed()
	a.own.event(s.node)
	look(`level=INFO msg="Found the Node" uid=`+string(nodeUID)+` before=""`,
		`level=INFO msg="Gate's readiness changed" gate=agent ready=false failing=[conflist]`,
		`level=INFO msg="Node's taint changed" gate=agent armed=true`)
	a.answer(errDown, nil)
	look(`level=INFO msg="Check changed its state" gate=agent check=socket from=passing to=wavering reason=down`,
		`level=INFO msg="Check changed its state" gate=agent check=conflist from=failing to=passing reason=""`,
		`level=INFO msg="Gate's readiness changed" gate=agent ready=true failing=[]`)
	other := newScene().with(shows(otherBoot)).node
	a.own.answer(other, a.turn())
	look(`level=INFO msg="Boot id's agreement with the Node's changed" gate=agent agrees=false reason="this machine's boot id is `+
		thisBoot+`, the Node shows \"`+otherBoot+`\""`,
		`level=INFO msg="Gate's readiness changed" gate=agent ready=false failing=[bootID]`,
		`level=INFO msg="Node's taint changed" gate=agent armed=false`)
}

func (a *Agent) turn() uint64 {
	_, turn := a.own.get()
	return turn
}

// dated answers as an API server whose clock is ahead.
type dated time.Duration

func (d dated) RoundTrip(*http.Request) (*http.Response, error) {
	date := time.Now().Add(time.Duration(d)).UTC().Format(http.TimeFormat)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Date": {date}}, Body: http.NoBody}, nil
}

// TestAgent_CorrectsItsClock: heartbeats show the API server's time, and a clock
// that is far off is worth a warning, once.
func TestAgent_CorrectsItsClock(t *testing.T) {
	a, log := alone(t)
	answer, err := a.api.Wrap(dated(-24 * time.Hour)).RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	a.own.event(newScene().armed().node)
	a.answer(nil, nil)
	v := a.gather()
	for range 3 {
		a.publish(v)
	}
	if got := strings.Count(log.String(), `level=WARN msg="Node's clock is far from the API server's" offset=-24h`) +
		strings.Count(log.String(), `level=WARN msg="Node's clock is far from the API server's" offset=-23h59m59`); got != 1 {
		t.Errorf("%d warnings in\n%s", got, log)
	}
	hb := v.heartbeat(v.gates[0].verdict)
	if off := time.Since(hb.Time) - 24*time.Hour; off.Abs() > 5*time.Second {
		t.Errorf("the heartbeat is off by %s", off)
	}
	if got := testutil.ToFloat64(a.metrics.clockOffset); got > -86390 || got < -86410 {
		t.Errorf("the metric says %v", got)
	}
}

func TestAgent_ServeReady(t *testing.T) {
	a, _ := alone(t)
	look := func(status int, want string) {
		t.Helper()
		recorder := httptest.NewRecorder()
		a.ServeReady(recorder, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if recorder.Code != status {
			t.Errorf("status %d, want %d", recorder.Code, status)
		}
		if diff := cmp.Diff(want, recorder.Body.String()); diff != "" {
			t.Errorf("body (-want +got):\n%s", diff)
		}
	}
	look(http.StatusServiceUnavailable, "starting\n")
	a.answer(nil)
	a.publish(a.gather())
	look(http.StatusServiceUnavailable, "gate agent: waiting for the Node and for a first answer of every check\n"+
		"  check socket: passing\n  check conflist: unknown\n")
	a.own.event(newScene().armed().node)
	a.answer(nil, errDown)
	a.publish(a.gather())
	look(http.StatusServiceUnavailable, "gate agent: not ready\n"+
		"  check socket: passing\n  check conflist: failing: down\n  taint: there\n")
	a.answer(errDown, nil)
	a.publish(a.gather())
	look(http.StatusOK, "gate agent: ready\n"+
		"  check socket: wavering: down\n  check conflist: passing\n  taint: there\n")
}

func TestAgent_ServeHealth(t *testing.T) {
	a, _ := alone(t)
	clock := testclock.NewFakeClock(time.Now())
	a.clock = clock
	look := func(status int) {
		t.Helper()
		recorder := httptest.NewRecorder()
		a.ServeHealth(recorder, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		if recorder.Code != status {
			t.Errorf("status %d, want %d: %s", recorder.Code, status, recorder.Body)
		}
	}
	look(http.StatusOK) // it is about to start
	a.step(t.Context())
	clock.Step(maxSilence)
	look(http.StatusOK)
	clock.Step(time.Second)
	look(http.StatusInternalServerError)
	a.step(t.Context())
	look(http.StatusOK)
}

func TestAgent_RegisterMetrics(t *testing.T) {
	a, _ := alone(t)
	registry := prometheus.NewPedanticRegistry()
	if err := a.RegisterMetrics(registry); err != nil {
		t.Fatal(err)
	}
	if err := a.RegisterMetrics(registry); err == nil {
		t.Error("registered twice without an error")
	}
	a.own.event(newScene().armed().node)
	a.answer(nil, errDown)
	v := a.gather()
	a.publish(v)
	a.wrote(gateWrite{verdict: v.gates[0].verdict, opens: true}, newScene().node)
	want := `
# HELP nodegate_agent_check_state 1 for the state that a check is in, 0 for the others.
# TYPE nodegate_agent_check_state gauge
` + states("conflist", Failing) + states("socket", Passing) + `
# HELP nodegate_agent_check_transitions_total Times that a check came into a state.
# TYPE nodegate_agent_check_transitions_total counter
nodegate_agent_check_transitions_total{check="conflist",gate="agent",state="failing"} 1
nodegate_agent_check_transitions_total{check="socket",gate="agent",state="passing"} 1
# HELP nodegate_agent_gate_armed 1 while the Node carries the gate's taint.
# TYPE nodegate_agent_gate_armed gauge
nodegate_agent_gate_armed{gate="agent"} 1
# HELP nodegate_agent_gate_ready 1 while the node serves, which is what the heartbeat and the readiness endpoint say.
# TYPE nodegate_agent_gate_ready gauge
nodegate_agent_gate_ready{gate="agent"} 0
# HELP nodegate_agent_heartbeats_written_total Heartbeats written to the Node.
# TYPE nodegate_agent_heartbeats_written_total counter
nodegate_agent_heartbeats_written_total{gate="agent",ready="false"} 1
nodegate_agent_heartbeats_written_total{gate="agent",ready="true"} 0
# HELP nodegate_agent_openings_total Writes that remove the gate's taint: after them it was gone, or admission had put it back.
# TYPE nodegate_agent_openings_total counter
nodegate_agent_openings_total{gate="agent",result="opened"} 1
nodegate_agent_openings_total{gate="agent",result="put_back"} 0
# HELP nodegate_agent_waiting_pods Pods bound to this node whose CNI plugin waits for a gate to open.
# TYPE nodegate_agent_waiting_pods gauge
nodegate_agent_waiting_pods 0
# HELP nodegate_agent_write_errors_total Writes to the Node that failed.
# TYPE nodegate_agent_write_errors_total counter
nodegate_agent_write_errors_total{reason="denied"} 0
nodegate_agent_write_errors_total{reason="forbidden"} 0
nodegate_agent_write_errors_total{reason="format"} 0
nodegate_agent_write_errors_total{reason="server"} 0
nodegate_agent_write_errors_total{reason="stale"} 0
nodegate_agent_write_errors_total{reason="unreachable"} 0
# HELP nodegate_agent_clock_offset_seconds How far the API server's clock is ahead of the node's; 0 until the API server has answered.
# TYPE nodegate_agent_clock_offset_seconds gauge
nodegate_agent_clock_offset_seconds 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func states(check string, in State) string {
	var b strings.Builder
	for _, state := range States() {
		fmt.Fprintf(&b, "nodegate_agent_check_state{check=%q,gate=\"agent\",state=%q} %v\n", check, state, number(state == in))
	}
	return b.String()
}
