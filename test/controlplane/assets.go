package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const (
	// GivenVariable names the environment variable with a folder of ready
	// binaries; it is the variable that envtest reads.
	GivenVariable = "KUBEBUILDER_ASSETS"

	// CacheVariable names the environment variable that moves the cache.
	CacheVariable = "NODEGATE_CACHE"
)

// Options say where to build and what.
type Options struct {
	// ModuleDir is the folder of the go.mod that holds the pins.
	ModuleDir string
	// Given is a folder of ready binaries; when set, nothing is built.
	Given string
	// Cache is the root of the cache; empty means the user's cache folder.
	Cache string
	// Kubelet adds the kubelet, which envtest does not need.
	Kubelet bool
	// Log receives progress, in lines or, on a terminal, in one line that changes.
	Log      io.Writer
	Terminal bool
}

// Ensure returns the folder that holds the binaries and builds those that are
// missing. It may run any number of times at once.
func Ensure(ctx context.Context, o Options) (string, error) {
	if o.Given != "" {
		return o.Given, checkGiven(o.Given, o.Kubelet)
	}
	root, err := cacheRoot(o.Cache)
	if err != nil {
		return "", err
	}
	p, err := readPins(ctx, o.ModuleDir)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "controlplane", p.folder())
	wanted := binaries(o.Kubelet)
	if len(missing(dir, wanted)) == 0 {
		return dir, nil
	}
	b := &builder{moduleDir: o.ModuleDir, dir: dir, pins: p, progress: newProgress(o.Log, o.Terminal)}
	return dir, b.build(ctx, wanted)
}

// checkGiven asks of a given folder only what every test needs: a folder made
// by setup-envtest has no scheduler and no controller manager.
func checkGiven(dir string, kubelet bool) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%s is %q: it must be an absolute path", GivenVariable, dir)
	}
	var absent []string
	for _, b := range missing(dir, binaries(kubelet)) {
		if b.given {
			absent = append(absent, b.name)
		}
	}
	if len(absent) > 0 {
		return fmt.Errorf("%s is %q, which lacks %s: complete the folder, or unset the variable to have everything built",
			GivenVariable, dir, strings.Join(absent, ", "))
	}
	return nil
}

// cacheRoot returns the folder that everything built by this repository is
// kept in.
func cacheRoot(chosen string) (string, error) {
	if chosen == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("choosing a cache folder: %w; set %s to an absolute path to build in", err, CacheVariable)
		}
		return filepath.Join(dir, "nodegate"), nil
	}
	if !filepath.IsAbs(chosen) {
		return "", fmt.Errorf("%s is %q: it must be an absolute path", CacheVariable, chosen)
	}
	return chosen, nil
}

// missing returns those of the wanted binaries that dir lacks. Presence is
// enough, since only complete binaries are ever moved to their names.
func missing(dir string, wanted []binary) []binary {
	var out []binary
	for _, b := range wanted {
		if !isExecutable(filepath.Join(dir, b.name)) {
			out = append(out, b)
		}
	}
	return out
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// ErrInterrupted is what Ensure returns, wrapped, when its context ends.
var ErrInterrupted = errors.New("interrupted; finished binaries are kept, run again to go on")
