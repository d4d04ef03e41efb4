// Package kubelet is a stand-in for a node's kubelet: what the API server and the
// control plane see of one, and nothing behind it.
//
// It writes as a kubelet does, with a kubelet's identity, through the Node
// authorizer and NodeRestriction. It registers by POST at every start, posts its
// status, renews its Lease, reports the pods that are bound to its node as
// running and removes those that are to be deleted. No container runs.
//
// It differs where a test would wait for nothing: its first status says Ready,
// where a real one may first wait for its runtime and its network; and its
// intervals can be shortened as those of the control plane can.
package kubelet
