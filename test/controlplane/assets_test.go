package controlplane

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodegate/nodegate/test/controlplane/internal/fake"
)

var always = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}

func options(t *testing.T) Options {
	t.Helper()
	return Options{ModuleDir: fake.Module(t), Cache: t.TempDir(), Log: io.Discard}
}

func ensure(t *testing.T, o Options) string {
	t.Helper()
	dir, err := Ensure(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// files lists a folder of the cache, with what a build leaves unfinished.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func expectFiles(t *testing.T, dir string, want []string) {
	t.Helper()
	if got := files(t, dir); !slices.Equal(got, want) {
		t.Errorf("files in %s:\n got %q\nwant %q", dir, got, want)
	}
}

func expectError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error lacks %q:\n%v", part, err)
		}
	}
}

func TestEnsure(t *testing.T) {
	o := options(t)
	dir := ensure(t, o)
	expectFiles(t, dir, always)

	out, err := exec.Command(filepath.Join(dir, "kube-apiserver")).Output()
	if err != nil {
		t.Fatal(err)
	}
	wantStamp := fake.Kubernetes + " major=1 minor=37 commit= tree=archive date=" + time.Now().UTC().Format("2006-")
	for _, line := range []string{"Kubernetes " + wantStamp, "client " + wantStamp} {
		if !strings.Contains(string(out), line) {
			t.Errorf("stamps: got %q, want %q in it", out, line)
		}
	}

	t.Run("what is there is not built again", func(t *testing.T) {
		log := &bytes.Buffer{}
		o := o
		o.Log = log
		before := modTimes(t, dir)
		if again := ensure(t, o); again != dir {
			t.Errorf("folder: got %s, want %s", again, dir)
		}
		if !slices.Equal(before, modTimes(t, dir)) || log.Len() > 0 {
			t.Errorf("built again:\n%s", log)
		}
	})
	t.Run("only what is missing is built", func(t *testing.T) {
		if err := os.Remove(filepath.Join(dir, "kubectl")); err != nil {
			t.Fatal(err)
		}
		before := modTimes(t, dir)
		ensure(t, o)
		if !slices.Equal(before, modTimes(t, dir)[:len(before)]) {
			t.Error("built more than the missing one")
		}
		expectFiles(t, dir, always)
	})
	t.Run("the kubelet comes when asked for", func(t *testing.T) {
		o := o
		o.Kubelet = true
		ensure(t, o)
		expectFiles(t, dir, append(slices.Clone(always), "kubelet"))
	})
}

func modTimes(t *testing.T, dir string) []time.Time {
	t.Helper()
	var times []time.Time
	for _, name := range files(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, info.ModTime())
	}
	return times
}

func TestEnsure_IgnoresSettingsThatChangeTheBuild(t *testing.T) {
	for name, value := range map[string]string{
		"GOFLAGS": "-tags=none -mod=vendor", "GOWORK": "/nonexistent/go.work", "GO111MODULE": "off",
		"CGO_ENABLED": "1", "GOOS": "plan9", "GOARCH": "arm",
	} {
		t.Setenv(name, value)
	}
	expectFiles(t, ensure(t, options(t)), always)
}

func TestEnsure_Twice(t *testing.T) {
	held := fake.NewHeldGo(t)
	t.Setenv("PATH", held.Dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	o := options(t)
	done := make(chan error, 2)
	start := func(log io.Writer) {
		o := o
		o.Log = log
		go func() {
			_, err := Ensure(t.Context(), o)
			done <- err
		}()
	}

	start(io.Discard)
	held.WaitForBuild(t)
	waits := make(signalWriter, 1)
	start(waits)
	if line := <-waits; !strings.Contains(line, "waiting for another build") {
		t.Errorf("the second said %q", line)
	}
	held.Release(t)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := strings.Count(held.Builds(t), "\n"); n != len(always) {
		t.Errorf("%d builds, want %d", n, len(always))
	}
}

// signalWriter passes on what is written first.
type signalWriter chan string

func (w signalWriter) Write(b []byte) (int, error) {
	select {
	case w <- string(b):
	default:
	}
	return len(b), nil
}

func TestEnsure_InterruptedWhileItWaits(t *testing.T) {
	o := options(t)
	dir := ensure(t, o)
	if err := os.Remove(filepath.Join(dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	lock, held, err := tryLock(dir + ".lock")
	if err != nil || !held {
		t.Fatal("lock not free", err)
	}
	defer lock.Close()

	ctx, cancel := context.WithCancel(t.Context())
	waits := make(signalWriter, 1)
	o.Log = waits
	go func() {
		<-waits
		cancel()
	}()
	_, err = Ensure(ctx, o)
	if !errors.Is(err, ErrInterrupted) {
		t.Errorf("got %v, want %v", err, ErrInterrupted)
	}
}

func TestEnsure_RemovesWhatAnInterruptedBuildLeft(t *testing.T) {
	o := options(t)
	dir := ensure(t, o)
	fake.Write(t, filepath.Join(dir, unfinished+"1", "kubectl"), "half", 0o755)
	if err := os.Remove(filepath.Join(dir, "kubectl")); err != nil {
		t.Fatal(err)
	}
	ensure(t, o)
	expectFiles(t, dir, always)
}

func TestEnsure_Failures(t *testing.T) {
	replace := func(t *testing.T, o Options, name, content string) {
		fake.Write(t, filepath.Join(o.ModuleDir, name), content, 0o644)
	}
	tests := map[string]struct {
		prepare func(t *testing.T, o *Options)
		want    []string
	}{
		"a compile error shows what the compiler said": {
			func(t *testing.T, o *Options) {
				replace(t, *o, "etcd/main.go", "package main\n\nfunc main() { wrong }\n")
			},
			[]string{"building etcd (go.etcd.io/etcd/server/v3)", "undefined: wrong"},
		},
		"a binary that tells another version is not kept": {
			func(t *testing.T, o *Options) {
				replace(t, *o, "etcd/main.go", "package main\n\nfunc main() { println(`etcd Version: 3.7.2`) }\n")
			},
			[]string{"should say that it is v3.7.3"},
		},
		"a binary that does not run is not kept": {
			func(t *testing.T, o *Options) {
				replace(t, *o, "etcd/main.go", "package main\n\nfunc main() { panic(`broken`) }\n")
			},
			[]string{"asking the new binary for its version", "panic: broken"},
		},
		"there is no go": {
			func(t *testing.T, _ *Options) { t.Setenv("PATH", t.TempDir()) },
			[]string{"looking for the go command", "install Go"},
		},
		"go is too old": {
			func(t *testing.T, _ *Options) { t.Setenv("PATH", oldGo(t)) },
			[]string{"this is go1.25.4, but go1.26.0 or newer is needed", "GOTOOLCHAIN=auto"},
		},
		"go.mod asks for a newer go than may be fetched": {
			func(t *testing.T, o *Options) {
				t.Setenv("GOTOOLCHAIN", "local")
				replace(t, *o, "go.mod", strings.Replace(fake.GoMod, "go 1.26.0", "go 1.999", 1))
			},
			[]string{"go1.999 or newer is needed", "upgrade Go"},
		},
		"the module proxy cannot be reached": {
			unreachableProxy,
			[]string{"127.0.0.1:1", "connection refused", "check the network and `go env GOPROXY`"},
		},
		"the folder has no go.mod": {
			func(t *testing.T, o *Options) { o.ModuleDir = t.TempDir() },
			[]string{"reading the pins in", "go.mod"},
		},
		"the go.mod is another": {
			func(t *testing.T, o *Options) { replace(t, *o, "go.mod", "module m\n\ngo 1.26.0\n") },
			[]string{"does not require go.etcd.io/etcd/server/v3", "run from test/controlplane"},
		},
		"the cache is a relative path": {
			func(_ *testing.T, o *Options) { o.Cache = "cache" },
			[]string{`NODEGATE_CACHE is "cache"`, "absolute"},
		},
		"nothing says where a cache could be": {
			func(t *testing.T, o *Options) {
				t.Setenv("HOME", "")
				t.Setenv("XDG_CACHE_HOME", "")
				o.Cache = ""
			},
			[]string{"HOME", "set NODEGATE_CACHE"},
		},
		"the cache cannot be written": {
			func(t *testing.T, o *Options) {
				fake.Write(t, filepath.Join(o.Cache, "controlplane"), "", 0o644)
			},
			[]string{"creating the cache", "not a directory"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			cache := o.Cache
			tc.prepare(t, &o)
			_, err := Ensure(t.Context(), o)
			expectError(t, err, tc.want...)
			expectNothingBuilt(t, cache)
		})
	}
}

// expectNothingBuilt allows for the lock and the empty folder beside it.
func expectNothingBuilt(t *testing.T, cache string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(cache, "controlplane", "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %q %v", left, err)
	}
}

func oldGo(t *testing.T) (path string) {
	t.Helper()
	realGo, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	return fake.Command(t, `[ "$1" != env ] || { echo go1.25.4; exit; }; exec '`+realGo+`' "$@"`)
}

// unreachableProxy has etcd come from a proxy at a port where nobody listens.
func unreachableProxy(t *testing.T, o *Options) {
	t.Helper()
	t.Setenv("GOPROXY", "http://127.0.0.1:1")
	t.Setenv("GOMODCACHE", t.TempDir())
	without := strings.Replace(fake.GoMod, "\tgo.etcd.io/etcd/server/v3 => ./etcd\n", "", 1)
	fake.Write(t, filepath.Join(o.ModuleDir, "go.mod"), without, 0o644)
	sum := strings.Repeat("A", 43) + "="
	fake.Write(t, filepath.Join(o.ModuleDir, "go.sum"),
		"go.etcd.io/etcd/server/v3 v3.7.3 h1:"+sum+"\ngo.etcd.io/etcd/server/v3 v3.7.3/go.mod h1:"+sum+"\n", 0o644)
}

func TestEnsure_Given(t *testing.T) {
	tests := map[string]struct {
		holds   []string
		kubelet bool
		wantErr string
	}{
		"what every test needs is enough":           {holds: []string{"etcd", "kube-apiserver", "kubectl"}},
		"what is missing is named":                  {holds: []string{"etcd"}, wantErr: "lacks kube-apiserver, kubectl: "},
		"the kubelet must be there when asked for":  {holds: always, kubelet: true, wantErr: "lacks kubelet: "},
		"an empty folder is not taken for complete": {wantErr: "lacks etcd, kube-apiserver, kubectl: "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", "") // nothing is built, not even go is asked
			given := t.TempDir()
			for _, name := range tc.holds {
				fake.Write(t, filepath.Join(given, name), "", 0o755)
			}
			dir, err := Ensure(t.Context(), Options{Given: given, Kubelet: tc.kubelet})
			if tc.wantErr != "" {
				expectError(t, err, GivenVariable, given, tc.wantErr)
				return
			}
			if err != nil || dir != given {
				t.Errorf("got %q, %v; want %q", dir, err, given)
			}
		})
	}

	t.Run("a folder that does not exist lacks everything", func(t *testing.T) {
		_, err := Ensure(t.Context(), Options{Given: "/nonexistent"})
		expectError(t, err, "lacks etcd, kube-apiserver, kubectl: ")
	})
	t.Run("a relative path is refused", func(t *testing.T) {
		_, err := Ensure(t.Context(), Options{Given: "bin"})
		expectError(t, err, `KUBEBUILDER_ASSETS is "bin"`, "absolute")
	})
	t.Run("a file that cannot be run does not count", func(t *testing.T) {
		given := t.TempDir()
		for _, name := range always {
			fake.Write(t, filepath.Join(given, name), "", 0o644)
		}
		_, err := Ensure(t.Context(), Options{Given: given})
		expectError(t, err, "lacks etcd, kube-apiserver, kubectl: ")
	})
}
