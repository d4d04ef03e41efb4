// Package cli is `kubectl nodegate`: what people do with gates, with their own
// rights and by kubectl's own configuration.
//
// A command writes what it found or did to Out, one line each, and everything it
// has to say besides to ErrOut. It returns an error that says what to do about it.
package cli
