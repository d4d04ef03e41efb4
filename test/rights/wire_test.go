package rights

import (
	"net"
	"net/url"
	"testing"
	"time"
)

// latency is that of answers over the wire: what a program knows is as old.
const latency = 100 * time.Millisecond

// slowWire is an address at which the API server's answers come late, so that
// others' writes come between a program's reading and writing.
func slowWire(t *testing.T, server string) string {
	t.Helper()
	address, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			backend, err := net.Dial("tcp", address.Host)
			if err != nil {
				_ = client.Close()
				continue
			}
			go forward(client, backend, 0)
			go forward(backend, client, latency)
		}
	}()
	return "https://" + listener.Addr().String()
}

// forward passes on what it reads, each piece after the same time, until one side
// has closed.
func forward(from, to net.Conn, delay time.Duration) {
	type piece struct {
		due  time.Time
		data []byte
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			buffer := make([]byte, 32<<10)
			n, err := from.Read(buffer)
			if n > 0 {
				pieces <- piece{time.Now().Add(delay), buffer[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		<-time.After(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			break
		}
	}
	_, _ = from.Close(), to.Close()
	for range pieces { // what is left
	}
}
