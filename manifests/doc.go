// Package manifests renders what a cluster runs and admits by, from the same
// [gate.Configuration] that controller and agent read: the two programs with their
// accounts and rights; the mutation policies, which keep the taint on a Node; the
// validation policies, which say who may write what; or, for the mutation over
// HTTPS, the webhook's registration, and what has cert-manager look after its
// certificate.
//
// The CEL in the policies is the twin of [gate.Gate.Admit] and
// [gate.Configuration.Permit]. It must be total: the policies fail closed, and no
// Node may make them raise an error.
//
// The folders are a kustomize tree: base, components and overlays. Their
// kustomization.yaml are written by hand, the files that these name are rendered,
// and a test holds the two against each other.
package manifests

//go:generate go test -run Golden . -update
