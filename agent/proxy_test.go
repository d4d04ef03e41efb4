package agent

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy is a wire to the API server that a test can cut.
type proxy struct {
	t       *testing.T
	backend string
	front   string

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	address, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, backend: address.Host, front: "127.0.0.1:0", open: map[net.Conn]bool{}}
	p.mend()
	t.Cleanup(p.cut)
	return p
}

func (p *proxy) address() string { return "https://" + p.front }

// mend lets connections through.
func (p *proxy) mend() {
	p.t.Helper()
	listener, err := net.Listen("tcp", p.front)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	p.listener, p.front = listener, listener.Addr().String()
	p.mu.Unlock()
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go p.forward(connection)
		}
	}()
}

// cut ends all connections and refuses new ones.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.listener.Close()
	p.listener = nil
	for connection := range p.open {
		_ = connection.Close()
	}
	clear(p.open)
}

func (p *proxy) forward(client net.Conn) {
	server, err := net.Dial("tcp", p.backend)
	if err != nil || !p.keep(client, server) {
		_ = client.Close()
		return
	}
	go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
	_, _ = io.Copy(client, server)
	_ = client.Close()
}

func (p *proxy) keep(connections ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, connection := range connections {
		p.open[connection] = true
	}
	return p.listener != nil
}
