// Package conflist reads a node's CNI configuration the way the node's runtime
// does, tells whether a plugin is chained in it, and mends it where it is not.
//
// It fails closed: what cannot be read, or is not understood, is not chained,
// and the reason names the file. It opens nothing but regular files and reads a
// bounded part of each. What it writes differs from what was there in the
// plugin's own entries and in nothing else, and replaces the file in one step.
//
// Reading order: runtime.go and load.go (what a runtime loads), judge.go (what to
// make of it, without any IO), edit.go (the new content), replace.go (the write),
// keeper.go (doing so for as long as the agent runs).
package conflist
