package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestServer_BoundsScrapers: whoever reaches the node can connect to its agent's
// metrics, and must not take the agent's memory with connections that stay.
func TestServer_BoundsScrapers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := server{name: "metrics", handler: metricsHandler(prometheus.NewRegistry()), limit: maxScrapers}
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, listener) }()
	defer func() {
		cancel()
		<-done
	}()
	ask := func() net.Conn {
		t.Helper()
		connection, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = connection.Close() })
		if _, err := fmt.Fprint(connection, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		return connection
	}
	answer := func(connection net.Conn) error {
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	var stay []net.Conn
	for range maxScrapers {
		connection := ask()
		if err := answer(connection); err != nil {
			t.Fatal(err)
		}
		stay = append(stay, connection)
	}
	next := ask()
	_ = next.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if err := answer(next); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("one more than %d is answered: %v", maxScrapers, err)
	}
	_ = next.SetReadDeadline(time.Time{})
	_ = stay[0].Close()
	if err := answer(next); err != nil {
		t.Errorf("it is not answered when another one has gone: %v", err)
	}
}
