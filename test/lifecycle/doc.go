// Package lifecycle installs nodegate by its command line in a cluster whose control
// plane is real, lets it work on many nodes, upgrades it and takes it away again.
package lifecycle
