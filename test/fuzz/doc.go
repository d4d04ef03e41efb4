// Package fuzz sends random and hostile writes to a real API server and wants
// three things of each: no policy raises an error, what comes of it is what
// package gate says, and the write is refused by nobody else's fault. A short
// stream runs with the tests, `make fuzz` runs a long one.
package fuzz
