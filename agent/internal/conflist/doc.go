// Package conflist reads a node's CNI configuration the way containerd does and
// tells whether a plugin is chained in it.
//
// It fails closed: what cannot be read, or is not understood, is not chained,
// and the error names the file. It opens nothing but regular files, reads a
// bounded part of each, and never writes.
package conflist
