package controlplane

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// pins is what go.mod asks for, as `go mod edit -json` prints it.
type pins struct {
	Go      string
	Require []moduleVersion
	Exclude []moduleVersion
	Replace []replacement
}

type moduleVersion struct {
	Path    string
	Version string
}

type replacement struct {
	Old, New moduleVersion
}

func readPins(ctx context.Context, moduleDir string) (pins, error) {
	out, err := goCommand{dir: moduleDir}.output(ctx, "mod", "edit", "-json")
	if err != nil {
		return pins{}, fmt.Errorf("reading the pins in %s/go.mod: %w", moduleDir, err)
	}
	var p pins
	if err := json.Unmarshal(out, &p); err != nil {
		return pins{}, fmt.Errorf("reading the pins in %s/go.mod: %w", moduleDir, err)
	}
	for _, module := range []string{etcdModule, kubernetesModule} {
		if p.version(module) == "" {
			return pins{}, fmt.Errorf("%s/go.mod does not require %s: run from test/controlplane", moduleDir, module)
		}
	}
	p.sort()
	return p, nil
}

// sort makes the digest independent of the order of lines.
func (p pins) sort() {
	byPath := func(a, b moduleVersion) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Version, b.Version))
	}
	slices.SortFunc(p.Require, byPath)
	slices.SortFunc(p.Exclude, byPath)
	slices.SortFunc(p.Replace, func(a, b replacement) int { return byPath(a.Old, b.Old) })
}

// version returns the version that is built of a module, "" if it has no pin.
func (p pins) version(module string) string {
	for _, r := range p.Replace {
		if r.Old.Path == module && r.New.Version != "" {
			return r.New.Version
		}
	}
	for _, m := range p.Require {
		if m.Path == module {
			return m.Version
		}
	}
	return ""
}

// folder names the place of one set of binaries. The two versions are for
// people; the digest covers every other pin and the build flags, so that a
// change to a dependency alone is a new folder too.
func (p pins) folder() string {
	return fmt.Sprintf("kubernetes-%s-etcd-%s-%s-%s-%s", p.version(kubernetesModule), p.version(etcdModule),
		runtime.GOOS, runtime.GOARCH, p.digest())
}

func (p pins) digest() string {
	hash := sha256.New()
	for _, m := range p.Require {
		fmt.Fprintln(hash, "require", m.Path, m.Version)
	}
	for _, m := range p.Exclude {
		fmt.Fprintln(hash, "exclude", m.Path, m.Version)
	}
	for _, r := range p.Replace {
		fmt.Fprintln(hash, "replace", r.Old.Path, r.Old.Version, "=>", r.New.Path, r.New.Version)
	}
	fmt.Fprintln(hash, buildFlags(p.version(kubernetesModule), time.Time{}))
	return hex.EncodeToString(hash.Sum(nil))[:12]
}
