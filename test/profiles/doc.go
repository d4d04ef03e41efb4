// Package profiles plays the agents for which manifests/profiles has configurations:
// what they and their operators do to a Node, beside nodegate's own programs on a
// real control plane.
package profiles
