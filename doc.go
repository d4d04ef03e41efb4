// Package nodegate is the map of this repository.
//
// A gate is a taint that a Node carries unless its own agent, in this boot, has
// recently shown that it serves. Read in this order:
//
//   - gate: the contract. Names, formats, the one judgement, what admission
//     decides, the configuration. Pure functions.
//   - manifests: the same decisions in CEL, rendered into admission policies; and
//     how the programs run, as a kustomize tree.
//   - test/cases: the table that both are tested by, and test/conformance, which
//     runs it on a real API server.
//   - agent: runs on every node, checks, writes the heartbeat, opens.
//   - guard: arms what no write arms. Leader-elected.
//   - webhook: the mutation over HTTPS, for clusters without the policy.
//   - certs: the webhook's serving certificates: made and renewed here, or read
//     from files.
//   - cmd: the programs; internal/cli is what kubectl nodegate does,
//     internal/report what it says of a cluster, internal/hold
//     how nodegate-cni and the agent hold back pods that are bound already.
//
// test/controlplane builds the API server, etcd and their companions from their
// Go modules; test/cluster starts them for tests; test/demo plays the whole loop;
// test/e2e plays on real nodes what happens to them.
// Why things are as they are stands in docs/decisions.
package nodegate
