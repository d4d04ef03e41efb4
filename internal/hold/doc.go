// Package hold is how pods that are bound to a node already are held back while
// its gates are closed: the CNI plugin nodegate-cni asks, the node's agent
// answers, on a Unix socket that is for root alone.
//
// The plugin sends one line, which pod it is about, and for how many milliseconds
// the runtime has been about it. The agent sends a line at once and whenever its
// answer changes, and ends with the one that lets the pod go:
//
//	{"v":1,"namespace":"shop","name":"cart-0","uid":"0deb1067-949c-4b9d-8907-4eaeaea221b2","age":120}
//	{"v":1,"open":false,"reason":"gate \"agent\" is closed: check socket: …"}
//	{"v":1,"open":true}
//
// With "again":true beside the reason nothing lets this attempt go: the runtime had
// begun it before what the gate checks was in its list of plugins.
//
// Both sides pass over fields that they do not know, so that either can be the
// newer one. What cannot be asked is closed.
//
// Reading order: protocol.go, ask.go and wait.go (the plugin), socket.go and
// server.go (the agent). The plugin is started for every pod: nothing here imports
// more than it needs.
package hold
