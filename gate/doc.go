// Package gate is the contract of nodegate and its one judgement.
//
// A gate is one taint, one heartbeat annotation and the Nodes it governs. The
// package names them, parses and formats what is written on a Node, judges a
// heartbeat ([Judge]), decides what admission does with a write ([Admit],
// [Permit]) and reads the [Configuration]. Everything here is a pure function of
// its arguments: no client, no clock, no goroutine, no package-level state.
//
// The admission policies in package manifests say the same rules in CEL. Both
// are tested from one table (test/cases) and with random Nodes; they must never
// differ.
package gate
