// Package nodedrain reproduces the incident in which a node is removed from a
// cluster, and pods on another node can no longer be reached from outside.
package nodedrain

import "github.com/relapse-dev/relapse/framework"

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

While all four nodes are up, every range is announced by one of them, and a node
that gets a packet for another node forwards it. When node1's sessions close,
10.5.115.0/24 is withdrawn, which is the range of master2's pods. The "stale"
10.5.112.0/24 is not stale: master1 announces it.`,
	Affected: "Cilium 1.11 with the MetalLB speaker and cluster-pool IPAM (not 1.10: it announces no pod CIDRs)",
	Fixed:    "1.12.0: the speaker follows CiliumNode",
	Remedies: []string{
		"move to a speaker that follows CiliumNode (1.12.0)",
		"make the allocations agree: ipam mode kubernetes, nodes recreated",
		"stopgap: a static route on the routers",
		"restarting the agents does not help",
		"restarting the hosts does not help",
	},
	Reproduction: `The cluster is kind's: real API server, kube-controller-manager, kubelets and
containerd. cilium-operator runs whole. The agent runs as a slice: the vendor's
flags, watchers, node discovery, node routes and BGP speaker, without the BPF
datapath; pods are wired by the CNI plugins ptp and host-local over the range
that the vendor's code has chosen (package images/cilium/agent lists it line by
line). 1.11.6 runs in place of the incident's 1.11.9, which is not published as a Go
module; the speaker is the same. Only master1 is a control plane.
The fault drains node1, deletes its Node object and removes its machine.

Both allocations are made by the vendors' controllers. Only their order is
forced: Nodes and CiliumNodes are created one after the other.

From 1.15 on (run --with, qualify) all of Cilium runs, installed by the vendor's chart:
cilium-cni wires the pods, BPF forwards, and the BGP control plane announces
(CiliumBGPClusterConfig; up to 1.15 CiliumBGPPeeringPolicy) in place of the MetalLB speaker, without
graceful restart.

A pass of the variants does not prove anything about Cilium's datapath, policies or
services, nor about the BGP control plane.`,
	Facts: []framework.Fact{
		{Says: "before the removal every node's pods are reached from outside",
			By: framework.By(oldVariant, framework.StepBaseline, framework.StepBefore("path-of-probes"))},
		{Says: "for as long as the cluster has this table, nodes announce ranges that they do not own, and the detector " +
			"reports it before any packet is lost",
			By: framework.By(oldVariant, framework.StepBefore("allocations-as-documented"), framework.StepBefore("routes-follow-node-spec"),
				framework.StepBaseline)},
		{Says: "a cluster gets such a table by itself",
			Not: "the scenario forces the order. Without that, with Cilium installed on all four nodes at once, the allocations " +
				"disagreed in 30 of 30 installations (95%: 89 to 100%); nodes that join a cluster " +
				"which runs Cilium were not counted"},
		{Says: "once node1 is removed, master2's pods and the outside do not reach each other; those of master1 and master3 do",
			By: framework.By(oldVariant, framework.StepSymptom, framework.StepObserve)},
		{Says: "the routers have lost 10.5.115.0/24, master2's range, and keep 10.5.112.0/24 via master1",
			By: framework.By(oldVariant, framework.StepAfter("orphan-withdrawn"))},
		{Says: "the detector names the range that no node announces, and its owner", By: framework.By(oldVariant, framework.StepFindings)},
		{Says: "a Node object that is deleted while its agent runs leaves a route to an absent node, and the detector " +
			"reports it; with 1.12.0 the route is withdrawn",
			By: framework.By(oldVariant, framework.StepPrecursor("node-object-deleted")).
				And(newVariant, framework.StepPrecursor("node-object-deleted"))},
		{Says: "it does not recover by itself",
			Not: "no run waits for it. In one run with --wait 10m, every packet was lost for ten minutes (2026-11-22)"},
		{Says: "restarting every agent does not help", By: framework.By(oldVariant, framework.StepRemedy("restart-agents"))},
		{Says: "restarting every host does not help",
			By:  framework.By(oldVariant, framework.StepRemedy("restart-hosts")),
			Not: "the host of the API server is not restarted: without it nothing could be observed"},
		{Says: "1.12.0's speaker, which follows CiliumNode, helps", By: framework.By(oldVariant, framework.StepRemedy("fixed-speaker"))},
		{Says: "allocations that agree help",
			By:  framework.By(oldVariant, framework.StepRemedy("kubernetes-ipam")),
			Not: "the API server's node is cleaned and kept"},
		{Says: "a static route on the routers helps for the time being", By: framework.By(oldVariant, framework.StepRemedy("static-route"))},
		{Says: "with 1.12.0 the same removal withdraws node1's own range and nothing else",
			By: framework.By(newVariant, framework.StepObserve, framework.StepAfter("own-range-withdrawn"))},
	},
	Diagram: `            outside 10.4.36.10
                  │
    ┌─────────────┴────────────┐            network "uplink" 10.4.36.0/24
 .239 tor1                 tor2 .238        AS 64524: GoBGP, routes in the kernel
    └──────┬────────────┬──────┘            network "nodes"  10.4.94.0/24
  ┌────────┴─┬──────────┼──────────┐
master1   master2    master3     node1      AS 64513: kind nodes
  .32       .21        .31        .23       pods in 10.5.112.0/21`,
}
