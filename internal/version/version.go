// Package version tells of which version a program is.
package version

import "runtime/debug"

// version is set by the linker (-X) when images are built.
var version string

// String is the version that the program was built as, or that of its module.
func String() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(unknown)"
}
