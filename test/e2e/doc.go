// Package e2e plays on real nodes what happens to them, and looks at what users
// would: which pods ran, on which nodes, and whether their mesh had taken them in.
//
// A node is a machine (package machine) with real kubelet, containerd and runc; its
// network is a bridge, and a mesh is chained in it (program standin). The control
// plane is a whole one. nodegate runs as it is shipped: a DaemonSet and a Deployment
// of the images that make images builds (package lab). A scenario is a trouble of one
// node, to which new pods are bound all the while. Each plays twice: without
// nodegate, to see the harm, without which the scenario shows nothing; and with it.
//
// `make e2e` runs the tests, in a sandbox (package sandbox) that leaves nothing
// behind. The tag e2e keeps them out
// of go test ./...
package e2e
