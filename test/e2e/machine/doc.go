//go:build linux

// Package machine makes nodes of a cluster that are as real as one kernel allows.
//
// A machine is a set of namespaces (process ids, mounts, network, cgroups, host
// name) with a file system of its own, in which a real containerd and a real
// kubelet run, under a process 1 that starts them again when they end. Its disk,
// /etc, /opt and /var, is a folder and survives; /run and /tmp are lost when it is
// switched off, and so are its network interfaces and its boot id.
//
// To switch a machine off is to kill its process 1: the kernel then kills, at once,
// all that ever ran in it, as a power cut would. To switch it on again is a reboot.
//
// [Main] is the process 1; [Machine] is how tests use it.
package machine
