// Package nodedrain reproduces the incident in which a node is removed from a
// cluster, and pods on another node can no longer be reached from outside.
package nodedrain

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "node-drain",
	Title:  "a removed node leaves another node's pods unreachable",
	Source: "production, Cilium 1.11.9 with BGP to two ToR routers; pkg/bgp/speaker of Cilium 1.11 and 1.12",
	Symptom: `Four nodes, pods in 10.5.112.0/21 cut into /24s, native routing, no masquerade.
node1 is removed from the cluster. From then on pods on master2 cannot reach
anything outside the cluster and cannot be reached from outside; pods on
master1 and master3 are fine. On the routers, prefixes do not match the nodes
that announce them, master2's prefix is gone, and the removed node's prefix
stays, even when every agent and host is restarted.`,
	Cause: `The BGP speaker of Cilium 1.11 announces Node.spec.podCIDRs, written by
kube-controller-manager. Pods get their addresses from the CiliumNode, written
by cilium-operator (cluster-pool IPAM). Nothing makes the two agree:

  node     announced (Node.spec)   in use (CiliumNode)
  master1  10.5.112.0/24           10.5.113.0/24
  master2  10.5.114.0/24           10.5.115.0/24
  master3  10.5.113.0/24           10.5.114.0/24
  node1    10.5.115.0/24           10.5.112.0/24

While all four live, every range is announced by somebody, and whoever gets a
packet for another node passes it on. When node1's sessions close,
10.5.115.0/24 goes with them: master2's pods. The "stale" 10.5.112.0/24 is
not stale: master1 announces it.`,
	Affected: "Cilium 1.10 and 1.11 with the MetalLB speaker and cluster-pool IPAM",
	Fixed:    "1.12.0: the speaker follows CiliumNode",
	Remedies: []string{
		"move to a speaker that follows CiliumNode (1.12.0)",
		"make the allocations agree: ipam mode kubernetes, agents and pods made anew",
		"stopgap: a static route on the routers",
		"restarting the agents does not help",
	},
	Reproduction: `The cluster is kind's: real API server, kube-controller-manager, kubelets and
containerd. cilium-operator runs whole. The agent runs as a slice: the vendor's
flags, watchers, node discovery, node routes and BGP speaker, without the BPF
datapath; pods are wired by the CNI plugins ptp and host-local over the range
that the vendor's code has found (package images/cilium/agent says it line by
line). 1.11.6 stands for the incident's 1.11.9, which is not published as a Go
module; the speaker is the same. One of the three masters is a control plane.

Both allocations are made by the vendors' controllers. Only their order is
forced: Nodes and CiliumNodes are created one after the other.

A pass does not prove anything about Cilium's datapath, policies or services,
nor about the newer BGP control plane (CiliumBGPPeeringPolicy).`,
	Diagram: `          outside
             │
      ┌──────┴──────┐        uplink 10.4.36.0/24
    tor1          tor2       AS 64524
      └──┬────┬────┬┴───┐    nodes  10.4.94.0/24
   master1 master2 master3 node1   AS 64513, pods 10.5.112.0/21`,
}
