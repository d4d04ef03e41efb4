package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodegate/nodegate/certs"
	"github.com/nodegate/nodegate/gate"
)

func newServer(t *testing.T, source certs.Source) (server *Server, address string) {
	t.Helper()
	log.SetLogger(logr.Discard())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	server, err = NewServer(address, source, &Handler{Configuration: gate.Default, Clock: clock.RealClock{}})
	if err != nil {
		t.Fatal(err)
	}
	return server, address
}

func selfSigned(t *testing.T) certs.Source {
	t.Helper()
	pair, err := certs.SelfSigned(time.Now(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	source, err := pair.Source()
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func TestServer_TLS(t *testing.T) {
	server, address := newServer(t, selfSigned(t))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 3*time.Minute, true,
		func(context.Context) (bool, error) { return server.StartedChecker()(nil) == nil, nil })
	if err != nil {
		t.Fatalf("waiting for the server: %v", err)
	}
	for name, tc := range map[string]struct{ newest, want uint16 }{
		"the newest is preferred": {0, tls.VersionTLS13},
		"1.2 is served":           {tls.VersionTLS12, tls.VersionTLS12},
		"1.1 is refused":          {tls.VersionTLS11, 0},
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := tls.Dial("tcp", address, &tls.Config{
				InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tc.newest,
			})
			if tc.want == 0 {
				if err == nil || !strings.Contains(err.Error(), "version") {
					t.Errorf("error %v, want one about the version", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer connection.Close()
			if got := connection.ConnectionState().Version; got != tc.want {
				t.Errorf("speaks %s, want %s", tls.VersionName(got), tls.VersionName(tc.want))
			}
		})
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("ended with %v", err)
	}
}

// broken is a source that gives up.
type broken struct{ certs.Source }

var errBroken = errors.New("no certificate ever")

func (broken) Start(context.Context) error { return errBroken }

func TestServer_EndsWithItsSource(t *testing.T) {
	server, _ := newServer(t, broken{selfSigned(t)})
	if err := server.Start(t.Context()); !errors.Is(err, errBroken) {
		t.Errorf("ended with %v, want %v", err, errBroken)
	}
}
