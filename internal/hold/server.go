package hold

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/nodegate/nodegate/internal/netconf"
)

const (
	// maxConnections bounds how many pods wait at once. Nodes run some hundreds; who
	// is turned away asks again.
	maxConnections = 1024
	// lineTimeout is how long a peer may take to say its line, or to take one.
	lineTimeout = 2 * time.Second
	// maxWait ends a conversation that no kubelet waits for any more.
	maxWait = 2 * time.Minute
	// looking is how often it is looked, with nothing known to have changed, at the
	// socket and at what time alone changes.
	looking = time.Second
)

// Keeper decides which pods wait.
type Keeper interface {
	// Holds returns what a pod waits for with which the runtime began at a time, for
	// people; nil if for nothing. Again: this attempt waits in vain, and the next one
	// may not. It is called often, and does not block. The context is that of the pod's
	// plugin.
	Holds(ctx context.Context, pod netconf.Pod, began time.Time) (again bool, reason error)
	// Changed is closed when another answer is possible.
	Changed() <-chan struct{}
}

// Server answers plugins on a socket.
type Server struct {
	Path   string
	Keeper Keeper
	Log    *slog.Logger
	// Waiting is told how many pods wait: those that were told so. Optional.
	Waiting func(int)

	mu      sync.Mutex
	open    map[net.Conn]bool
	waiting int
}

// Run serves until the context ends. Where the socket cannot be made, or is taken
// away, that is said once, and tried again.
func (s *Server) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	ticker := time.NewTicker(looking)
	defer ticker.Stop()
	var at *socket
	told := ""
	for {
		if at == nil || at.lost(ctx) {
			at.close()
			var err error
			if at, err = listen(s.Path); err == nil {
				s.Log.Info("Answering the CNI plugin", "socket", s.Path)
				listener := at.listener // at may be another before this one is accepted from
				group.Go(func() { s.accept(ctx, listener, &group) })
				told = ""
			} else if told != err.Error() {
				told = err.Error()
				s.Log.Error("CNI plugin cannot be answered, trying again", "socket", s.Path, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			at.close()
			s.hangUp()
			return
		case <-ticker.C:
		}
	}
}

func (s *socket) close() {
	if s != nil {
		_ = s.listener.Close() // the path stays, for the next
	}
}

// accept takes connections until the listener is closed.
func (s *Server) accept(ctx context.Context, listener net.Listener, group *sync.WaitGroup) {
	for {
		connection, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // of one connection, or for want of descriptors
			select {
			case <-ctx.Done():
				return
			case <-time.After(maxPause):
			}
			continue
		}
		if !s.admit(ctx, connection) {
			_ = connection.Close() // whoever it was asks again
			continue
		}
		group.Go(func() {
			defer s.dismiss(connection)
			s.converse(ctx, connection)
		})
	}
}

func (s *Server) admit(ctx context.Context, connection net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) >= maxConnections || ctx.Err() != nil {
		return false
	}
	if s.open == nil {
		s.open = map[net.Conn]bool{}
	}
	s.open[connection] = true
	return true
}

func (s *Server) dismiss(connection net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, connection)
	_ = connection.Close()
}

// hangUp ends all conversations: their plugins turn to the next agent.
func (s *Server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for connection := range s.open {
		_ = connection.Close()
	}
}

func (s *Server) converse(ctx context.Context, connection net.Conn) {
	_ = connection.SetDeadline(time.Now().Add(lineTimeout)) // fails only for one that is closed
	lines := bufio.NewReaderSize(connection, maxLineBytes)
	line, err := lines.ReadSlice('\n')
	if err != nil {
		return
	}
	var q question
	if err = json.Unmarshal(line, &q); err == nil {
		err = q.check()
	}
	if err != nil {
		_ = writeLine(connection, closed(err)) // it may not understand that
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	_ = connection.SetReadDeadline(time.Time{})
	go func() { // ends with the connection
		_, _ = lines.ReadByte() // there is nothing more to say: it has gone, or is no plugin
		cancel()
	}()
	s.answer(ctx, connection, q.Pod, q.began(time.Now()))
}

// answer tells how it stands, each time that this is another, until the pod may go.
func (s *Server) answer(ctx context.Context, connection net.Conn, pod netconf.Pod, began time.Time) {
	var said answer
	defer func() {
		if said != (answer{}) {
			s.count(-1)
		}
	}()
	ticker := time.NewTicker(looking)
	defer ticker.Stop()
	for {
		changed := s.Keeper.Changed()
		now := answer{Version: version, Open: true}
		if again, reason := s.Keeper.Holds(ctx, pod, began); reason != nil {
			now = closed(reason)
			now.Again = again
		}
		if now != said {
			_ = connection.SetWriteDeadline(time.Now().Add(lineTimeout))
			if err := writeLine(connection, now); err != nil || now.Open {
				return
			}
			if said == (answer{}) { // one that may go at once has not waited
				s.count(1)
			}
			said = now
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
		}
	}
}

func (s *Server) count(by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting += by
	if s.Waiting != nil {
		s.Waiting(s.waiting)
	}
}
