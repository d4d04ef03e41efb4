package cluster

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// Wire leads to an API server, and can be cut.
type Wire struct {
	backend string
	front   string
	sent    atomic.Int64
	got     atomic.Int64

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
}

// NewWire returns one that lets connections through to the server of a client
// configuration. The caller cuts it in the end.
func NewWire(config *rest.Config) (*Wire, error) {
	address, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("reading the API server's address: %w", err)
	}
	listener, err := listen("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{backend: address.Host, front: listener.Addr().String(), open: map[net.Conn]bool{}}
	w.accept(listener)
	return w, nil
}

// Config is an identity's configuration, by this wire.
func (w *Wire) Config(identity *rest.Config) *rest.Config {
	config := rest.CopyConfig(identity)
	config.Host = "https://" + w.front
	return config
}

// Sent is how many bytes clients have sent, encrypted.
func (w *Wire) Sent() int64 { return w.sent.Load() }

// Received is how many bytes clients have received, encrypted.
func (w *Wire) Received() int64 { return w.got.Load() }

// Mend lets connections through.
func (w *Wire) Mend() error {
	listener, err := listen(w.front)
	if err != nil {
		return err
	}
	w.accept(listener)
	return nil
}

func listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening in front of the API server: %w", err)
	}
	return listener, nil
}

// accept forwards what comes in, until the listener is closed.
func (w *Wire) accept(listener net.Listener) {
	w.mu.Lock()
	w.listener = listener
	w.mu.Unlock()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go w.forward(connection)
		}
	}()
}

// Cut ends all connections and refuses new ones.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listener != nil {
		_ = w.listener.Close()
	}
	w.listener = nil
	for connection := range w.open {
		_ = connection.Close()
	}
	clear(w.open)
}

func (w *Wire) forward(client net.Conn) {
	server, err := net.Dial("tcp", w.backend)
	if err != nil || !w.keep(client, server) {
		_ = client.Close()
		return
	}
	var group sync.WaitGroup
	group.Go(func() { _, _ = io.Copy(server, io.TeeReader(client, (*counter)(&w.sent))); _ = server.Close() })
	_, _ = io.Copy(client, io.TeeReader(server, (*counter)(&w.got)))
	_ = client.Close()
	group.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, client)
	delete(w.open, server)
}

// counter counts the bytes that are written to it.
type counter atomic.Int64

func (c *counter) Write(data []byte) (int, error) {
	(*atomic.Int64)(c).Add(int64(len(data)))
	return len(data), nil
}

// keep notes connections for the cut. One that came in before it is cut at once.
func (w *Wire) keep(client, server net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listener == nil {
		_ = server.Close()
		return false
	}
	w.open[client], w.open[server] = true, true
	return true
}
