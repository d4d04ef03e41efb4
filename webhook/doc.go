// Package webhook is the mutation over HTTPS, for clusters whose API server does
// not serve mutating policies.
//
// [Handler] does what the policies of package manifests do, by the same functions
// of package gate, and tells the caller why. It answers with a patch that names
// nothing but the taint, so that no field of a Node is lost that this program
// does not know. It reads nothing but the request, and changes nothing: any
// number of replicas serve, without election, and a dry run is like any write.
package webhook
