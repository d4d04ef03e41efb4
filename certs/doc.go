// Package certs provides the serving certificate of the webhook.
//
// A [Source] is one of two. [SelfManaged] keeps an authority and a certificate in
// a Secret that all replicas share, renews both, and tells the API servers whom to
// trust. [Files] serves a pair from a directory that somebody else renews, such as
// cert-manager through a mounted Secret. Neither needs a leader, and neither ever
// replaces a pair that serves by one that cannot.
//
// [SelfSigned] makes a pair, for demonstrations and tests.
package certs
