package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodegate/nodegate/gate"
)

// healthServer answers as its path asks. Where it hangs, it says so.
func healthServer(hung chan<- struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/none", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/down", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the data path\x00is\xff dead", http.StatusServiceUnavailable)
	})
	mux.Handle("/elsewhere", http.RedirectHandler("/ok", http.StatusFound))
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("no ", 1<<10)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Much", strings.Repeat("x", 2*maxHeaderBytes))
	})
	mux.HandleFunc("/drop", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("/hang", func(_ http.ResponseWriter, r *http.Request) {
		hung <- struct{}{}
		<-r.Context().Done()
	})
	return mux
}

// answers are what the server's paths amount to; empty: the check passes.
func httpAnswers() map[string]string {
	return map[string]string{
		"/ok":        "",
		"/ok?all=1":  "",
		"/none":      "",
		"/down":      "GET /down: 503 Service Unavailable: the data path\x00is dead",
		"/elsewhere": "GET /elsewhere: 302 Found",
		"/missing":   "GET /missing: 404 Not Found: 404 page not found",
		"/endless":   "GET /endless: 500 Internal Server Error: no no no",
		"/headers":   "GET /headers: ",
		"/drop":      "GET /drop: it accepts, and hangs up without an answer",
	}
}

func TestHTTPCheck(t *testing.T) {
	// A proxy that the environment names is nobody's business here.
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	hung := make(chan struct{})
	for scheme, start := range map[corev1.URIScheme]func(http.Handler) *httptest.Server{
		corev1.URISchemeHTTP: httptest.NewServer, corev1.URISchemeHTTPS: httptest.NewTLSServer,
	} {
		server := start(healthServer(hung))
		t.Cleanup(server.Close)
		port := portOf(t, server.Listener)
		for path, want := range httpAnswers() {
			t.Run(string(scheme)+path, func(t *testing.T) {
				check := newHTTPCheck(gate.HTTPCheck{Host: "127.0.0.1", Port: port, Path: path, Scheme: scheme})
				expectAnswer(t, ask(t, check, nil), want)
			})
		}
		t.Run(string(scheme)+" hung", func(t *testing.T) {
			check := newHTTPCheck(gate.HTTPCheck{Host: "127.0.0.1", Port: port, Path: "/hang", Scheme: scheme})
			expectAnswer(t, askUntil(t, check, hung), "GET /hang: hung: it accepts, and does not answer in time")
		})
	}
}

func TestHTTPCheck_Endpoint(t *testing.T) {
	server := httptest.NewServer(healthServer(nil))
	t.Cleanup(server.Close)
	check := newHTTPCheck(gate.HTTPCheck{Host: gate.HostInternalIP, Port: portOf(t, server.Listener), Path: "/ok", Scheme: corev1.URISchemeHTTP})
	if err := ask(t, check, nil); !errors.Is(err, ErrNoNode) {
		t.Errorf("without a Node: %v", err)
	}
	node := &corev1.Node{}
	expectAnswer(t, ask(t, check, node), "the Node shows no internal address")
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "127.0.0.1"},
	}
	expectAnswer(t, ask(t, check, node), "")
	server.Close()
	expectAnswer(t, ask(t, check, node), "refused: nobody listens")
}

// TestSocketCheck_HTTP: a socket that accepts is not enough where health is
// asked for.
func TestSocketCheck_HTTP(t *testing.T) {
	path := filepath.Join(socketDir(t), "s")
	health := func(path, url string) Check {
		check, err := newSocketCheck(gate.SocketCheck{Path: path, HTTP: &gate.HTTPHealth{Path: url}})
		if err != nil {
			t.Fatal(err)
		}
		return check
	}
	expectAnswer(t, ask(t, health(path, "/ok"), nil), "socket "+path+": absent")
	serveHTTP(t, listen(t, path))
	for url, want := range httpAnswers() {
		expectAnswer(t, ask(t, health(path, url), nil), want)
	}
	// It listens, and whoever runs it is stuck.
	stuck := path + "2"
	hung := hang(t, listen(t, stuck))
	expectAnswer(t, askUntil(t, health(stuck, "/ok"), hung), "socket "+stuck+": GET /ok: hung: it accepts, and does not answer in time")
}

func serveHTTP(t *testing.T, listener net.Listener) {
	t.Helper()
	server := &http.Server{Handler: healthServer(nil), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

func portOf(t *testing.T, listener net.Listener) int32 {
	t.Helper()
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("%s is no TCP address", listener.Addr())
	}
	return int32(address.Port)
}

// ask asks a check once, with all the time that it needs.
func ask(t *testing.T, check Check, node *corev1.Node) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return check.Check(ctx, node)
}

// askUntil asks a check whose time is over when it hangs.
func askUntil(t *testing.T, check Check, hung <-chan struct{}) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- check.Check(ctx, nil) }()
	<-hung
	cancel()
	return <-answer
}

// hang accepts one connection, reads what is asked and never answers.
func hang(t *testing.T, listener net.Listener) (hung <-chan struct{}) {
	t.Helper()
	asked := make(chan struct{})
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = connection.Close() })
		if _, err := connection.Read(make([]byte, 1)); err == nil {
			close(asked)
		}
	}()
	return asked
}

// expectAnswer wants a reason that contains the text; empty: none.
func expectAnswer(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || !strings.Contains(text(err), want) {
		t.Errorf("answer %.300q, want %q", text(err), want)
	}
}
