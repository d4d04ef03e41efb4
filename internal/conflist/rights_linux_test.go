package conflist_test

import (
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodegate/nodegate/internal/conflist"
)

// TestMend_WithoutCapabilities: as the agent runs, root in name only. What belongs
// to root is mended; the owner of another's list cannot be kept, and so it stays.
func TestMend_WithoutCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can have what is taken away here")
	}
	list := func(t *testing.T, mode os.FileMode, uid, gid int) (conflist.Options, conflist.Reading, error) {
		t.Helper()
		dir := t.TempDir()
		put(t, dir, "10-n.conflist", unchained)
		path := filepath.Join(dir, "10-n.conflist")
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
		o := conflist.Options{Dir: dir, Plugin: plugin, Runtime: runtime(t, "containerd")}
		var r conflist.Reading
		var err error
		powerless(t, func() {
			r = conflist.Read(o, known())
			err = conflist.Mend(o, r, known())
		})
		return o, r, err
	}
	t.Run("root's own", func(t *testing.T) {
		o, _, err := list(t, 0o600, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		judged(t, conflist.Read(o, known()), conflist.OK)
	})
	for name, id := range map[string]struct{ uid, gid int }{"another's": {12345, 0}, "another group's": {0, 54321}} {
		t.Run(name, func(t *testing.T) {
			o, _, err := list(t, 0o644, id.uid, id.gid)
			expect(t, err, "the capability CHOWN")
			judged(t, conflist.Read(o, known()), conflist.Append)
			if left := tree(t, o.Dir); len(left) != 2 {
				t.Errorf("left over: %v", left)
			}
		})
	}
	t.Run("not to be read", func(t *testing.T) {
		_, r, err := list(t, 0o600, 12345, 54321)
		judged(t, r, conflist.Refuse)
		expect(t, err, "permission denied")
	})
}

// powerless runs f in a thread without capabilities, which ends with it.
func powerless(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // and never unlocked: nobody else gets the thread
		var sets [2]unix.CapUserData
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		err := unix.Capset(&header, &sets[0])
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
