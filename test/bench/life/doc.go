// Package life measures what happens to a node in package world: one run takes
// seconds, and the node, its kubelet and its agent live on from run to run. `make
// bench-life` runs it; nothing in it asserts a time.
package life
