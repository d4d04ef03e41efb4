package hold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodegate/nodegate/internal/netconf"
	"github.com/nodegate/nodegate/test/syncbuf"
)

var pod = netconf.Pod{Namespace: "shop", Name: "cart-0", UID: "0deb1067-949c-4b9d-8907-4eaeaea221b2"}

// door is a keeper that a test opens and closes by hand.
type door struct {
	mu      sync.Mutex
	why     error
	changed chan struct{}
	// since is when the attempts began which it lets go.
	since time.Time
	asked []netconf.Pod
}

func newDoor(why string) *door { return &door{why: errors.New(why), changed: make(chan struct{})} }

func (d *door) Holds(_ context.Context, pod netconf.Pod, began time.Time) (again bool, reason error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, pod)
	if began.Before(d.since) {
		return true, errors.New("it was too early")
	}
	return false, d.why
}

func (d *door) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// set closes the door for a reason, or opens it.
func (d *door) set(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.why = why
	close(d.changed)
	d.changed = make(chan struct{})
}

// server is one that runs until its test ends or stops it.
type server struct {
	*Server
	stop func()
	log  *syncbuf.Buffer
}

// serve starts a server, and returns when it answers, or says why it cannot.
func serve(t *testing.T, path string, keeper Keeper) *server {
	t.Helper()
	s := &server{Server: &Server{Path: path, Keeper: keeper}, log: &syncbuf.Buffer{}}
	s.Log = slog.New(slog.NewTextHandler(s.log, nil))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	s.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(s.stop)
	eventually(t, "the server to start", func() bool { return s.log.String() != "" })
	return s
}

func (s *server) waits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

func (s *server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// socketPath is in a directory of its own, and short enough.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ng")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run", "cni.sock")
}

func settings(path string, timeout time.Duration) netconf.Settings {
	s := netconf.Defaults()
	s.Socket, s.Timeout = path, timeout
	return s
}

// waiting is a pod that waits, for longer than its test lasts.
func waiting(t *testing.T, path string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- Wait(t.Context(), settings(path, netconf.MaxTimeout), pod, time.Now()) }()
	return done
}

// TestWait_UntilTheGateOpens: many pods wait for one gate, and all go when it opens.
func TestWait_UntilTheGateOpens(t *testing.T) {
	const pods = 110
	gate := newDoor("gate \"agent\" is closed")
	s := serve(t, socketPath(t), gate)
	var all []<-chan error
	for range pods {
		all = append(all, waiting(t, s.Path))
	}
	eventually(t, "all pods to wait", func() bool { return s.waits() == pods })
	gate.set(errors.New("another reason"))
	gate.set(nil)
	for _, done := range all {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	eventually(t, "nobody to wait", func() bool { return s.waits() == 0 && s.connections() == 0 })
	gate.mu.Lock()
	defer gate.mu.Unlock()
	for _, asked := range gate.asked {
		if asked != pod {
			t.Errorf("asked for %+v", asked)
		}
	}
}

// TestServer_CountsThoseThatWait, and none that may go at once.
func TestServer_CountsThoseThatWait(t *testing.T) {
	gate := newDoor("")
	gate.set(nil)
	s := serve(t, socketPath(t), gate)
	counts := make(chan int, 10)
	s.mu.Lock()
	s.Waiting = func(n int) { counts <- n }
	s.mu.Unlock()
	if err := Wait(t.Context(), settings(s.Path, netconf.MaxTimeout), pod, time.Now()); err != nil {
		t.Fatal(err)
	}
	gate.set(errors.New("closed"))
	done := waiting(t, s.Path)
	eventually(t, "the pod to wait", func() bool { return s.waits() == 1 })
	gate.set(nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
	eventually(t, "nobody to wait", func() bool { return s.waits() == 0 && s.connections() == 0 })
	close(counts)
	var told []int
	for n := range counts {
		told = append(told, n)
	}
	if !slices.Equal(told, []int{1, 0}) {
		t.Errorf("told %v", told)
	}
}

// TestWait_TellsWhy: after its time a pod fails with what people need to know.
func TestWait_TellsWhy(t *testing.T) {
	const silent = "this node's nodegate-agent does not say whether it is ready for pods: "
	for name, tc := range map[string]struct {
		given func(t *testing.T, path string)
		want  string
	}{
		"the gate is closed": {func(t *testing.T, path string) {
			serve(t, path, newDoor(`gate "agent" is closed: check socket: refused`))
		},
			`this node is not ready for pods: gate "agent" is closed: check socket: refused`},
		"a long reason": {func(t *testing.T, path string) { serve(t, path, newDoor(strings.Repeat("\x01<", 5000))) },
			"this node is not ready for pods: " + strings.Repeat("\x01<", 300) + "…"},
		"nothing is there":  {func(*testing.T, string) {}, silent + "connecting to SOCKET: no such file or directory"},
		"nobody listens":    {func(t *testing.T, path string) { leftBehind(t, path) }, silent + "connecting to SOCKET: connection refused"},
		"something else":    {func(t *testing.T, path string) { put(t, path) }, silent + "connecting to SOCKET: connection refused"},
		"it hangs up":       {func(t *testing.T, path string) { peer(t, path, "") }, silent + "asking at SOCKET: the agent hung up"},
		"it talks nonsense": {func(t *testing.T, path string) { peer(t, path, "HTTP/1.1 400 Bad Request\n") }, silent + `asking at SOCKET: "HTTP/1.1 400 Bad Request\n" is no answer of version 1`},
		"it never ends":     {func(t *testing.T, path string) { peer(t, path, strings.Repeat("x", 3*maxLineBytes)) }, silent + "asking at SOCKET: bufio: buffer full"},
		"another version":   {func(t *testing.T, path string) { peer(t, path, `{"v":2,"open":true}`+"\n") }, `asking at SOCKET: "{\"v\":2,\"open\":true}\n" is no answer of version 1`},
		"it says nothing":   {func(t *testing.T, path string) { mute(t, path) }, silent + "asking at SOCKET: no answer in time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := socketPath(t)
			tc.given(t, path)
			err := Wait(t.Context(), settings(path, 8*time.Second), pod, time.Now())
			if err == nil {
				t.Fatal("it does not wait")
			}
			if want := strings.ReplaceAll(tc.want, "SOCKET", path); !strings.Contains(err.Error(), want) ||
				!strings.HasSuffix(err.Error(), "; waited 8s, and the kubelet tries again") {
				t.Errorf("it says %q, want %q", err, want)
			}
		})
	}
}

// TestWait_KeepsTheReason: an agent that says why and hangs up, as one of another
// version does, is quoted, and is not asked again and again without a pause.
func TestWait_KeepsTheReason(t *testing.T) {
	path := socketPath(t)
	asked := peer(t, path, `{"v":1,"reason":"this agent speaks version 1, and not 2"}`+"\n")
	err := Wait(t.Context(), settings(path, 4*time.Second), pod, time.Now())
	const want = "this node is not ready for pods: this agent speaks version 1, and not 2; waited 4s"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("it says %v, want %s", err, want)
	}
	// 10, 20, 40, 80 and 160 ms apart, and then 250 ms.
	if n := asked.Load(); n > 21 {
		t.Errorf("it was asked %d times in 4 s", n)
	}
}

// TestWait_Overtaken: an attempt that is in vain ends at once, and only the next one
// is let go.
func TestWait_Overtaken(t *testing.T) {
	gate := newDoor("")
	gate.set(nil)
	gate.since = time.Now().Add(-time.Minute)
	s := serve(t, socketPath(t), gate)
	err := Wait(t.Context(), settings(s.Path, netconf.MaxTimeout), pod, gate.since.Add(-time.Millisecond))
	const want = "this node is not ready for pods: it was too early; waited "
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("it ends with %v, want %s", err, want)
	}
	if err := Wait(t.Context(), settings(s.Path, netconf.MaxTimeout), pod, time.Now()); err != nil {
		t.Errorf("the next one: %v", err)
	}
	// A plugin of before is not let go either while it stays.
	connection, err := net.Dial("unix", s.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	gate.mu.Lock()
	gate.since = time.Now().Add(time.Hour)
	gate.mu.Unlock()
	_, _ = fmt.Fprintf(connection, `{"v":1}`+"\n")
	eventually(t, "it to wait", func() bool { return s.waits() == 1 })
}

// TestQuestion_Began: whatever the age is, it is of one attempt.
func TestQuestion_Began(t *testing.T) {
	now := time.Now()
	for age, want := range map[int64]time.Duration{0: 0, 1500: 1500 * time.Millisecond, -1: 0, math.MaxInt64: maxWait, math.MinInt64: 0} {
		if got := now.Sub(question{Age: age}.began(now)); got != want {
			t.Errorf("%d: %s ago, want %s", age, got, want)
		}
	}
}

// TestWait_Exempt: who is exempt asks nobody.
func TestWait_Exempt(t *testing.T) {
	s := settings("/nowhere/cni.sock", time.Minute)
	for _, exempt := range []netconf.Pod{{Namespace: "kube-system", Name: "a"}, {Namespace: netconf.Namespace, Name: "b"}} {
		if err := Wait(t.Context(), s, exempt, time.Now()); err != nil {
			t.Errorf("%+v: %v", exempt, err)
		}
	}
}

// TestWait_AgentComesLater: pods wait before there is any agent, as after a boot.
func TestWait_AgentComesLater(t *testing.T) {
	path := socketPath(t)
	done := waiting(t, path)
	gate := newDoor("starting")
	s := serve(t, path, gate)
	eventually(t, "the pod to find the agent", func() bool { return s.waits() == 1 })
	gate.set(nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestServer_FollowsAnother: as in a roll the next agent starts before the one
// before it has ended, which takes nothing away when it does.
func TestServer_FollowsAnother(t *testing.T) {
	path := socketPath(t)
	before := serve(t, path, newDoor("before"))
	done := waiting(t, path)
	eventually(t, "the pod to wait", func() bool { return before.waits() == 1 })
	gate := newDoor("after")
	after := serve(t, path, gate)
	before.stop()
	eventually(t, "the pod to turn to the next agent", func() bool { return after.waits() == 1 })
	gate.set(nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := Wait(t.Context(), settings(path, netconf.MaxTimeout), pod, time.Now()); err != nil {
		t.Error(err)
	}
}

// TestServer_HoldsItsPath: whatever happens to the path, somebody who lives is
// reached at it.
func TestServer_HoldsItsPath(t *testing.T) {
	for name, happens := range map[string]func(t *testing.T, path string){
		"a socket of one that was killed": leftBehind,
		"the socket is removed":           remove,
		"the tmpfs is emptied":            func(t *testing.T, path string) { remove(t, filepath.Dir(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := socketPath(t)
			if name != "a socket of one that was killed" {
				gate := newDoor("")
				gate.set(nil)
				serve(t, path, gate)
				happens(t, path)
			} else { // before it starts, and while it runs
				happens(t, path)
				gate := newDoor("")
				gate.set(nil)
				serve(t, path, gate)
				remove(t, path)
				happens(t, path)
			}
			if err := Wait(t.Context(), settings(path, netconf.MaxTimeout), pod, time.Now()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("another one that lives", func(t *testing.T) {
		path := socketPath(t)
		at, err := listen(path)
		if err != nil {
			t.Fatal(err)
		}
		defer at.close()
		next, err := listen(path)
		if err != nil {
			t.Fatal(err)
		}
		if at.lost(t.Context()) || next.lost(t.Context()) {
			t.Error("the path is taken from one that lives")
		}
		next.close()
		if !at.lost(t.Context()) {
			t.Error("a path that leads nowhere is not taken back")
		}
	})
}

// TestServer_SaysWhenItIsLost: where clients do not reach it and it cannot help that,
// it says so, and is back as soon as it can.
func TestServer_SaysWhenItIsLost(t *testing.T) {
	ok := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		happens func(t *testing.T, path string)
		is      func(path string) string
		want    string
	}{
		"the path leads nowhere": {func(t *testing.T, path string) {
			remove(t, path)
			ok(t, os.Symlink("/nowhere", path))
		}, func(path string) string { return path }, "is there and is no socket"},
		"the path is a file":      {func(t *testing.T, path string) { remove(t, path); put(t, path) }, func(path string) string { return path }, "is there and is no socket"},
		"the directory is a file": {func(t *testing.T, path string) { remove(t, filepath.Dir(path)); put(t, filepath.Dir(path)) }, filepath.Dir, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate := newDoor("")
			gate.set(nil)
			s := serve(t, socketPath(t), gate)
			tc.happens(t, s.Path)
			eventually(t, "it to say so", func() bool { return strings.Contains(s.log.String(), tc.want) })
			remove(t, tc.is(s.Path))
			if err := Wait(t.Context(), settings(s.Path, netconf.MaxTimeout), pod, time.Now()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestServer_HostilePeers: none of them keeps the server from answering others.
func TestServer_HostilePeers(t *testing.T) {
	gate := newDoor("closed")
	s := serve(t, socketPath(t), gate)
	for i := range maxConnections + 100 {
		var said string
		switch i % 5 {
		case 1:
			said = "{"
		case 2:
			said = strings.Repeat("x", 2*maxLineBytes)
		case 3:
			said = "GET / HTTP/1.1\r\n\r\n"
		case 4:
			said = `{"v":9}` + "\n"
		}
		connection, err := net.Dial("unix", s.Path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = connection.Close() })
		_, _ = connection.Write([]byte(said)) // it may have been turned away
	}
	done := waiting(t, s.Path)
	eventually(t, "the pod to be heard", func() bool { return s.waits() == 1 && s.connections() == 1 })
	// One that speaks on, and one that goes away.
	for _, more := range []string{"x", ""} {
		connection, err := net.Dial("unix", s.Path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(connection, `{"v":1}`+"\n")
		eventually(t, "a second one to be heard", func() bool { return s.waits() == 2 })
		if more == "" {
			_ = connection.Close()
		} else {
			_, _ = connection.Write([]byte(more))
			defer connection.Close()
		}
		eventually(t, "it to be left", func() bool { return s.waits() == 1 })
	}
	gate.set(nil)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestServer_Refuses: what is not its own it leaves as it is, and says so once.
func TestServer_Refuses(t *testing.T) {
	for name, tc := range map[string]struct {
		given func(t *testing.T, path string)
		want  string
	}{
		"no socket": {put, "is there and is no socket"},
		"a directory that others use": {func(t *testing.T, path string) {
			put(t, filepath.Join(filepath.Dir(path), "other"))
			if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
		}, "is open to others (mode 0755) and holds other: the socket needs a directory of its own"},
		"no directory": {func(t *testing.T, path string) { put(t, filepath.Dir(path)) }, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			path := socketPath(t)
			tc.given(t, path)
			before := look(t, filepath.Dir(filepath.Dir(path)))
			s := serve(t, path, newDoor(""))
			eventually(t, "it to say why", func() bool { return strings.Contains(s.log.String(), tc.want) })
			if after := look(t, filepath.Dir(filepath.Dir(path))); before != after {
				t.Errorf("it changed\n%s to\n%s", before, after)
			}
		})
	}
}

// TestListen_ForRootAlone: a mount makes the directory for everybody; it becomes
// the agent's, and what a crash has left in it goes.
func TestListen_ForRootAlone(t *testing.T) {
	path := socketPath(t)
	for _, made := range []bool{false, true} {
		if made {
			if err := os.Chmod(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			leftBehind(t, temporaryName(path)+"00000000")
			old := time.Now().Add(-time.Hour)
			if err := os.Chtimes(temporaryName(path)+"00000000", old, old); err != nil {
				t.Fatal(err)
			}
		}
		at, err := listen(path)
		if err != nil {
			t.Fatal(err)
		}
		want := "drwx------ run\nSrw------- run/cni.sock\n"
		if got := look(t, filepath.Dir(filepath.Dir(path))); got != want {
			t.Errorf("there is\n%s want\n%s", got, want)
		}
		at.close()
	}
	long := filepath.Join(filepath.Dir(path), strings.Repeat("x", netconf.MaxSocketPath-len(filepath.Dir(path))-1))
	at, err := listen(long)
	if err != nil {
		t.Errorf("a path of %d bytes: %v", len(long), err)
	}
	at.close()
}

func TestStatus(t *testing.T) {
	path := socketPath(t)
	expect := func(want string) {
		t.Helper()
		eventually(t, "STATUS to say "+want, func() bool { // a busy machine may not answer in time
			return fmt.Sprint(Status(t.Context(), settings(path, time.Minute))) == want
		})
	}
	expect("this node's nodegate-agent does not say whether it is ready for pods: connecting to " + path + ": no such file or directory")
	gate := newDoor("closed")
	serve(t, path, gate)
	expect("this node is not ready for pods: closed")
	gate.set(nil)
	expect("<nil>")
}

func FuzzServer(f *testing.F) {
	for _, seed := range []string{"", "{", `{"v":1}` + "\n", `{"v":1,"namespace":"a","name":"b","uid":"c"}` + "\n", "\x00\n", `{"v":1e99}` + "\n", "null\n", "[]\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		gate := newDoor("")
		gate.set(nil)
		s := &Server{Keeper: gate}
		here, there := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.converse(t.Context(), there)
			_ = there.Close()
		}()
		go func() {
			_, _ = here.Write(said)
			_ = here.SetReadDeadline(time.Now())
			_ = here.Close()
		}()
		<-done
	})
}

// peer answers every connection with a text, and hangs up. It counts them.
func peer(t *testing.T, path, text string) *atomic.Int32 {
	t.Helper()
	listener := bind(t, path)
	asked := &atomic.Int32{}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			_, _ = connection.Read(make([]byte, maxLineBytes))
			_, _ = connection.Write([]byte(text))
			_ = connection.Close()
		}
	}()
	return asked
}

// mute accepts, and never says anything.
func mute(t *testing.T, path string) {
	t.Helper()
	listener := bind(t, path)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = connection.Close() })
		}
	}()
}

func bind(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// leftBehind is the socket of a process that was killed.
func leftBehind(t *testing.T, path string) {
	t.Helper()
	if err := bind(t, path).Close(); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// look lists what is below a directory.
func look(t *testing.T, dir string) string {
	t.Helper()
	var list strings.Builder
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		fmt.Fprintln(&list, info.Mode(), name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.String()
}
