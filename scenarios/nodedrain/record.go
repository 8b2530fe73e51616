// Package nodedrain reproduces the incident in which a node is removed from a
// cluster, and pods on another node can no longer be reached from outside.
package nodedrain

import (
	"slices"

	"github.com/relapse-dev/relapse/framework"
)

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "node-drain",
	Title:  "a removed node leaves another node's pods unreachable",
	Source: "production, Cilium 1.11.9 with BGP to two ToR routers; pkg/bgp/speaker of Cilium 1.11 and 1.12",
	Issue:  "https://github.com/cilium/cilium/pull/17899",
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
	Affected: "Cilium 1.11 with the MetalLB speaker and cluster-pool IPAM; 1.10 announces no pod CIDRs",
	Fixed:    "1.12.0: the speaker follows CiliumNode",
	Remedies: []string{
		"move to a speaker that follows CiliumNode (1.12.0)",
		"make the allocations agree: ipam mode kubernetes, nodes made anew",
		"stopgap: a static route on the routers",
		"restarting the agents does not help",
		"restarting the hosts does not help",
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
	Facts: []framework.Fact{
		{
			Says: "before the removal every node's pods are reached from outside",
			By:   framework.By("cilium-1.11.6", "baseline", "before: probes from outside cross a router, the announcing node and the owner, untranslated"),
		},
		{
			Says: "a day before the symptom, and for as long as the cluster has this table, ranges are announced by nodes that do not own them, and the detector says so",
			By:   framework.By("cilium-1.11.6", "before: the allocations are the incident's", "before: the routers send each range of Node.spec to its node", "baseline"),
		},
		{
			Says: "a cluster comes to such a table by itself",
			Not: "the scenario forces the order. With none forced, and Cilium installed on all four nodes at once, the allocations " +
				"disagreed in 30 of 30 installations (95%: 89 to 100%; TestHowOftenAllocationsDisagree); nodes that join a cluster which runs Cilium were not counted",
		},
		{
			Says: "once node1 is removed, master2's pods and the outside reach each other no more; those of master1 and master3 do",
			By:   framework.By("cilium-1.11.6", "symptom", "nothing else is hurt"),
		},
		{
			Says: "the routers have lost 10.5.115.0/24, master2's range, and keep 10.5.112.0/24 by way of master1",
			By:   framework.By("cilium-1.11.6", "after: the routers have lost 10.5.115.0/24 and nothing else"),
		},
		{
			Says: "the detector names the range that nobody announces, and its owner",
			By:   framework.By("cilium-1.11.6", "detectors"),
		},
		{
			Says: "a Node object that is deleted while its agent runs leaves a route to a node that is absent, and the detector says so; with 1.12.0 it is withdrawn",
			By: slices.Concat(
				framework.By("cilium-1.11.6", "lesser form: the Node object of node1 is deleted while its agent runs"),
				framework.By("cilium-1.12.0", "lesser form: the Node object of node1 is deleted while its agent runs"),
			),
		},
		{
			Says: "it does not heal by itself",
			Not:  "no run waits for it. Once, with --wait 10m, not one packet got through in ten minutes (2026-11-22)",
		},
		{
			Says: "restarting every agent does not help",
			By:   framework.By("cilium-1.11.6", "no remedy: restart every agent"),
		},
		{
			Says: "restarting every host does not help",
			By:   framework.By("cilium-1.11.6", "no remedy: restart every host but the API server's"),
			Not:  "the host of the API server goes on: without it nobody would see anything",
		},
		{
			Says: "1.12.0's speaker, which follows CiliumNode, helps",
			By:   framework.By("cilium-1.11.6", "remedy: Cilium 1.12.0"),
		},
		{
			Says: "allocations that agree help",
			By:   framework.By("cilium-1.11.6", "remedy: ipam mode kubernetes, nodes made anew"),
			Not:  "the API server's node is cleaned and kept",
		},
		{
			Says: "a static route on the routers helps for the time being",
			By:   framework.By("cilium-1.11.6", "remedy: static route on the routers"),
		},
		{
			Says: "with 1.12.0 the same removal costs nothing but node1's own range",
			By:   framework.By("cilium-1.12.0", "no probe is hurt", "after: the routers have lost the removed node's own range and nothing else"),
		},
	},
	Diagram: `          outside
             │
      ┌──────┴──────┐        uplink 10.4.36.0/24
    tor1          tor2       AS 64524
      └──┬────┬────┬┴───┐    nodes  10.4.94.0/24
   master1 master2 master3 node1   AS 64513, pods 10.5.112.0/21`,
}
