//go:build linux

// Package lab is the cluster of the end-to-end tests: a control plane of real
// processes, real nodes (package machine), a network and a mesh that is chained in
// it (program standin), and nodegate as its users install it.
//
// It needs a sandbox (package sandbox) around it, which is also what ends it.
package lab
