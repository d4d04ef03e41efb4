// Package world is a small cluster in which nodegate can be watched at work: real
// etcd, kube-apiserver, kube-scheduler and kube-controller-manager, the gate
// installed with least rights, the real nodegate-controller and, for each node, a
// real nodegate-agent with a token bound to its pod. Only kubelets are stand-ins
// (package kubelet), and what is behind them: a gated agent is a Unix socket, a
// node's CNI configuration is a folder.
//
// Demo and measurements share it. [Start] makes a [World], [World.NewNode] a
// [Node] that can crash, boot and lose its network configuration, and a [History]
// keeps every state in which the watch has shown its Node object.
package world
