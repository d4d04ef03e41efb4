// Package guard arms what no write arms.
//
// Admission keeps a gate closed at every write to a Node. The guard covers the
// rest: a kubelet's own write, in which admission cannot change taints, and the
// mere passing of time, which writes nothing. It watches Nodes, the agent's pods
// and its DaemonSets, and adds a gate's taint where the Node is open against the
// rules. It never removes one: that is for the node's agent to do.
//
// One [Guard] at a time acts, by leader election. Its decisions are a pure
// function of what it sees (decide.go), and of what it remembers between two looks
// (memory.go): since when a node has had no Ready agent pod and which of the agent's
// processes ran, the last heartbeat and when it was first seen, what the guard has
// done, counted or begun to write, and since when there is news to look at.
//
// An agent's silence is weaker evidence than what it says. How many Nodes may be
// armed for it is limited (breaker.go), and after a time in which no agent could
// have been heard none is (suspend.go). Both stand on the leader's [Lease]. Every
// arming and opening that is seen is told, whoever did it (narrate.go).
//
// It needs get, list, watch and patch on nodes; list and watch on pods and
// daemonsets in the agents' namespaces; get, update and create on its Lease; and
// create and patch on events.k8s.io events in the Lease's namespace and in
// "default", where those of Nodes are.
package guard
