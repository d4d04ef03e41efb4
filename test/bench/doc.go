// Package bench states speed and memory, as ratios within one run: the machine
// under it may be any. `make bench` runs it; nothing in it asserts a time.
package bench
