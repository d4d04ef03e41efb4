// Package agent is the part of a gate that runs on the node: it tests whether
// the node serves, says so in the Node's heartbeat, and opens the gate.
//
// An [Agent] asks the checks of its gates over and over, each in a goroutine of
// its own, and reduces the answers to one verdict per gate. Heartbeat, readiness
// endpoint and opening all follow from that verdict. Opening is one write that
// carries the heartbeat and the removal of the taint together. The agent never
// adds a taint: admission does, in the very write that says ready=false.
//
// The agent needs get, list, watch and patch on nodes, and reads no Node but its
// own. Admission accepts its heartbeats only with a token that is bound to a pod
// on that Node. It is a Runnable of controller-runtime, and runs without one.
//
// Reading order: check.go and dwell.go (what an answer is worth), verdict.go and
// decide.go (what to write, without any IO), loop.go (gather, decide, act).
package agent
