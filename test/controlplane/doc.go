// Package controlplane builds the Kubernetes control plane that the tests run
// against (etcd, kube-apiserver, kube-scheduler, kube-controller-manager,
// kubectl and, when asked, kubelet) from Go modules, so that a test run needs
// nothing but Go.
//
// The versions are pinned in go.mod beside this file and nowhere else. The
// binaries go to a cache outside the tree, one folder per set of pins; a
// binary is in that folder only when it is complete and has told the pinned
// version. cmd/assets is the command; `make assets` calls it.
//
// Read assets.go first, then pins.go (what go.mod asks for), binaries.go (what
// is built, with which flags) and build.go (how).
package controlplane
