// Package conflist reads a node's CNI configuration the way the node's runtime
// does, tells whether a plugin is chained in it, and mends it where it is not.
//
// It fails closed: what cannot be read, or is not understood, is not chained,
// and the reason names the file. It opens nothing but regular files and reads a
// bounded part of each. A list that it mends keeps every byte but those of
// the plugin's own entries and their commas, and is replaced in one step. It makes
// a new list only where an installer asks for one, of a single plugin's file.
//
// Reading order: runtime.go, load.go, file.go and parse.go (what a runtime loads),
// judge.go and networks.go (what to make of it), entry.go, scan.go and edit.go (the
// new content), replace.go and attributes_linux.go (the write), mend.go (one
// repair), install.go (chaining and the reverse), history.go, keeper.go and
// watch.go (repairing for as long as the agent runs).
package conflist
