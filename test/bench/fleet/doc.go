// Package fleet measures the guard in a large cluster, as the program that is
// shipped: what it costs, and how fast it is. Its times are given beside those of
// bare writes in the same run; the machine under it may be any. `make bench-fleet`
// runs it; nothing in it asserts a time.
package fleet
