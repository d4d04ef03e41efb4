// Package netconf is what the CNI plugin nodegate-cni is told: its entry in a
// list, which the agent's installer writes and the plugin reads, and of which pod
// a runtime calls it. It is pure, and imports the standard library alone: the
// plugin is started for every pod.
package netconf
