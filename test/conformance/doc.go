// Package conformance runs the table of package cases, row by row, against the
// admission that a real API server has installed, with the mutation as a policy
// and as a webhook: by real identities, with real tokens, in every form of write. `make conformance` runs it with a report in
// JUnit's format.
package conformance
