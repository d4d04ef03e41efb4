package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// unfinished starts the name of every folder that a build works in. Such a
// folder lies beside the finished binaries, hence on the same file system,
// and takes the compiler's temporary files as well, so that all that an
// interrupted build leaves behind is found and removed by the next.
const unfinished = ".unfinished-"

// builder fills one folder of the cache.
type builder struct {
	moduleDir string
	dir       string
	pins      pins
	progress  *progress
}

func (b *builder) build(ctx context.Context, wanted []binary) error {
	if err := checkGo(ctx, b.moduleDir, b.pins.Go); err != nil {
		return err
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return fmt.Errorf("creating the cache: %w", err)
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := removeUnfinished(b.dir); err != nil {
		return err
	}
	// Whoever held the lock may have built some of them.
	return b.buildAll(ctx, missing(b.dir, wanted))
}

// lock lets one build at a time work in the folder. The lock goes with the
// process that holds it, however that ends.
func (b *builder) lock(ctx context.Context) (unlock func(), err error) {
	path := b.dir + ".lock"
	file, held, err := tryLock(path)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	if held {
		return func() { _ = file.Close() }, nil
	}
	err = b.progress.during("waiting for another build of the control plane", func() error {
		return waitForLock(ctx, file)
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for %s: %w", path, err)
	}
	return func() { _ = file.Close() }, nil
}

func (b *builder) buildAll(ctx context.Context, list []binary) error {
	if len(list) > 0 {
		b.progress.sayf("building the control plane in %s; the first time takes minutes", b.dir)
	}
	for i, bin := range list {
		start := time.Now()
		what := fmt.Sprintf("building %s %s (%d of %d)", bin.name, b.pins.version(bin.module), i+1, len(list))
		if err := b.progress.during(what, func() error { return b.buildOne(ctx, bin) }); err != nil {
			return fmt.Errorf("building %s: %w", bin, err)
		}
		b.progress.sayf("built %s %s in %s", bin.name, b.pins.version(bin.module), elapsed(start))
	}
	return nil
}

// buildOne moves a binary to its name once there is nothing left that could
// go wrong with it.
func (b *builder) buildOne(ctx context.Context, bin binary) error {
	work, err := os.MkdirTemp(b.dir, unfinished)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // else the next build does it

	path := filepath.Join(work, bin.name)
	args := append([]string{"build"}, buildFlags(b.pins.version(kubernetesModule), time.Now())...)
	args = append(args, "-o", path, bin.pkg)
	if _, err := (goCommand{dir: b.moduleDir, work: work}).output(ctx, args...); err != nil {
		return err
	}
	if err := b.checkVersion(ctx, bin, path); err != nil {
		return err
	}
	if err := syncFile(path); err != nil {
		return err
	}
	return os.Rename(path, filepath.Join(b.dir, bin.name))
}

// checkVersion runs the binary: a version stamped into a variable that has
// moved goes unnoticed otherwise, and tests would run against a server that
// says it is something else.
func (b *builder) checkVersion(ctx context.Context, bin binary, path string) error {
	want := b.pins.version(bin.module)
	out, err := run(ctx, b.moduleDir, os.Environ(), path, bin.version...)
	if err != nil {
		return fmt.Errorf("asking the new binary for its version: %w", err)
	}
	if !tellsVersion(string(out), want) {
		return fmt.Errorf("the new binary should say that it is %s, it says:\n%s", want, tail(string(out)))
	}
	return nil
}

func removeUnfinished(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, unfinished+"*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("removing what an interrupted build left: %w", err)
		}
	}
	return nil
}

// syncFile puts the binary on the disk before it gets its name, else a power
// cut could leave the name with half the content.
func syncFile(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}
