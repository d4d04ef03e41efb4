// Package behaviour shows what happens in a cluster over many writes, where the
// table of cases in test/conformance shows what comes of one: on a real API
// server, by the policies and by the webhook.
package behaviour
