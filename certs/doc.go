// Package certs provides the serving certificate of the webhook.
//
// [Files] serves a pair from a directory and follows its renewal; a pair that
// cannot be read, or half of a new one, never replaces the last good one.
// [SelfSigned] makes a pair, for demonstrations and tests.
package certs
