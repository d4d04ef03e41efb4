// Package manifests renders what a cluster admits by, from the same
// [gate.Configuration] that controller and agent read: the mutation policies,
// which keep the taint on a Node, the validation policies, which say who may
// write what, and their bindings; or, for the mutation over HTTPS, the webhook's
// registration, and what has cert-manager look after its certificate.
//
// The CEL in them is the twin of [gate.Gate.Admit] and
// [gate.Configuration.Permit]. It must be total: the policies fail closed, and no
// Node may make them raise an error. Golden files in policy/ and webhook/ hold what
// is rendered for the default gate, ready to be applied.
package manifests

//go:generate go test -run TestPolicies_Golden . -update
