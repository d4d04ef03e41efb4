//go:build linux

package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// hierarchies is where control groups are mounted.
const hierarchies = "/sys/fs/cgroup"

// Groups is a control group of the same name in every hierarchy: the one of version
// 2, and those of version 1, if there are any.
type Groups []Group

// Group is a control group in one hierarchy.
type Group struct {
	// Mount is where the hierarchy is mounted, and Kind and Flags say how.
	Mount, Kind, Flags string
	// Parent and Name are of the group, below Mount.
	Parent, Name string
}

// CheckGroups says what is missing.
func CheckGroups() error {
	if len(groups("", "")) == 0 {
		return fmt.Errorf("there are no control groups at %s", hierarchies)
	}
	return nil
}

// groups looks for the hierarchies that are mounted.
func groups(parent, name string) Groups {
	var all Groups
	if _, err := os.Stat(filepath.Join(hierarchies, "cgroup.procs")); err == nil {
		return Groups{{Mount: hierarchies, Kind: "cgroup2", Parent: parent, Name: name}}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || filepath.Dir(fields[1]) != hierarchies {
			continue
		}
		if fields[2] == "cgroup" || fields[2] == "cgroup2" {
			all = append(all, Group{Mount: fields[1], Kind: fields[2], Flags: hierarchy(fields[3]), Parent: parent, Name: name})
		}
	}
	return all
}

// hierarchy keeps of a mount's options those that name the hierarchy.
func hierarchy(options string) string {
	var kept []string
	for option := range strings.SplitSeq(options, ",") {
		switch {
		case slices.Contains([]string{"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "noatime", "xattr", "clone_children"}, option):
		case strings.HasPrefix(option, "release_agent="):
		case strings.HasPrefix(option, "name="):
			kept = append(kept, "none", option)
		default:
			kept = append(kept, option)
		}
	}
	return strings.Join(kept, ",")
}

func (g Group) path() string { return filepath.Join(g.Mount, g.Parent, g.Name) }

// name tells the groups from those of other machines and boots.
func (gs Groups) name() string { return filepath.Join("/", gs[0].Parent, gs[0].Name) + "/" }

// make makes the groups.
func (gs Groups) make() error {
	for _, g := range gs {
		parent := filepath.Join(g.Mount, g.Parent)
		for _, dir := range []string{parent, g.path()} {
			if err := g.makeOne(dir); err != nil {
				return fmt.Errorf("making control group %s: %w", dir, err)
			}
		}
	}
	return nil
}

func (g Group) makeOne(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	above := filepath.Dir(dir)
	if g.Kind == "cgroup2" {
		return delegate(above)
	}
	// A group of version 1 has no processors of its own, and takes no process, until
	// it is given those of the one above.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(above, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), value, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// delegate has the groups below one of version 2 use all controllers that it has.
func delegate(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(controllers)) {
		// One that refuses, such as cpu where there are realtime processes, is not needed.
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o600)
	}
	return nil
}

// join moves this process into the groups.
func (gs Groups) join() error {
	for _, g := range gs {
		if err := os.WriteFile(filepath.Join(g.path(), "cgroup.procs"), []byte("0"), 0o600); err != nil {
			return fmt.Errorf("joining a control group: %w", err)
		}
	}
	return nil
}

// remove removes the groups with all that are below them. Processes that are killed
// leave them a moment later, many of them on busy cores some seconds.
func (gs Groups) remove() error {
	var faults []error
	for _, g := range gs {
		faults = append(faults, removeGroup(g.path()))
	}
	return errors.Join(faults...)
}

// RemoveGroups removes the control groups of a run in every hierarchy.
func RemoveGroups(run string) error { return groups(run, "").remove() }

func removeGroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeGroup(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	for began := time.Now(); ; <-time.After(10 * time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) || time.Since(began) > time.Minute {
			return err
		}
	}
}
