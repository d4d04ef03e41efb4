// Package report says of a cluster how its gates stand, from what was read of it and
// a time: pure functions and the types that `kubectl nodegate` writes as JSON and
// YAML. The names of their fields are a promise, kept in docs/output.md.
package report
