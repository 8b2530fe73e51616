// Package twincidr reproduces the incident in which cilium-operator gives one pod range to two
// nodes.
package twincidr

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:  "twin-cidr",
	Title: "two nodes get one pod range when a node joins while cilium-operator is down",
	Source: "cilium#21482 and #21526, September 2022; changelogs of 1.11.11 and 1.12.4; operator and " +
		"pkg/ipam/allocator/podcidr of Cilium 1.10.0 to 1.12.5, 1.18.0, 1.18.4, 1.19.3, 1.19.5 and 1.20.2",
	Issue: "https://github.com/cilium/cilium/issues/21482",
	Symptom: `A node joins while cilium-operator restarts, such as when a cluster is set up and the
leader changes. It gets the pod range of a node that has been there for long. The routers have
two origins for this prefix, and packets to pods reach the wrong node. What fails, and for whom,
depends on the routers: with one best path all pods of one of the nodes are lost, with ECMP a
share of the flows to the pods of both.`,
	Cause: `The operator (IPAM mode cluster-pool) keeps in memory which ranges are taken. After a
start it learns that from the CiliumNodes, one after the other, from a queue. A CiliumNode
without a range has to wait until Resync says that all others are known. From 1.11.0 on Resync
is called when the CiliumNodes have been listed and queued (k8sCiliumNodesCacheSynced), not when
the queue has been worked off. The newcomer gets the lowest range that is free so far, although a
CiliumNode that is still queued has it in its spec. When that one's turn comes, the operator
refuses it its own range in status.ipam.operator-status.error, and nothing else happens.

1.12.4 puts a mark behind them into the queue, and calls Resync when it gets there
(ciliumNodeManagerQueueSynced). Up to 1.10 the informer itself tells the allocator of each
CiliumNode.`,
	Affected: "Cilium 1.11.0 to 1.11.10 and 1.12.0 to 1.12.3 with cluster-pool IPAM",
	Fixed:    "1.11.11 and 1.12.4",
	Remedies: []string{
		"the newcomer's CiliumNode made anew while no operator runs, then cilium-operator 1.12.4",
		"the same while that operator runs does not help, if it was started with the twin range: it has refused the owner, " +
			"and gives the range away again",
		"cilium-operator 1.12.4 alone does not help",
		"restarting the agents does not help",
	},
	Reproduction: `cilium-operator runs whole. The agents are node-drain's slice, with the MetalLB
speaker, which from 1.12 on follows CiliumNode. Pods are wired by the CNI plugins ptp and
host-local. Nodes reach each other's pods over the ToRs, which share packets out by address and
port (ECMP).

It is a race, so what makes it likely is arranged. 400 CiliumNodes without a machine get their
ranges from the operator before the fault; nodes-gc-interval is 0s, the operator's own default,
so that they stay and that it does not wait for Nodes before Resync (the chart says 5m0s); debug
is on; the newcomer's name sorts before that of the owner of the lowest range. With the real
operator as a process alone, 1.12.3 gave two nodes one range in 1 of 10 starts with no other
CiliumNodes, in 4 of 10 with 30, in 5 of 15 with 300, in 9 of 10 with 1000, and in 13 of 15 with
300 and debug; 1.12.4 in 0 of 6.

The newcomer is a node whose CiliumNode is deleted while no operator runs, and whose agent is
started again and creates one without a range. That is repeated until it gets the range of
another node, four times at most, and seven times with a version that no variant names; every
one of 1.12.4 must go well. It runs no pods: host-local would give them addresses of the owner's
pods, and answer in their place.

Other versions run from 1.12.0 to 1.12.x. The speaker of 1.11 announces Node.spec.podCIDRs, so
that routers never have two origins; the newcomer's own pods are lost there.

By their source 1.18 to 1.20 do not have this race; none of them was run. 1.18 has 1.12.4's mark.
From 1.19 on one loop takes CiliumNodes and the event Sync, in this order, and calls Resync with
the latter.

A pass does not prove anything about Cilium's datapath, multi-pool IPAM or IPv6, nor how often
this happens in a cluster of yours.`,
	Facts: []framework.Fact{
		{Says: "before the fault the routers send each range to one node",
			By: framework.By(affectedVariant, framework.StepBaseline, framework.StepBefore("one-origin"), framework.StepBefore("path-of-probes")).
				And(fixedVariant, framework.StepBefore("one-origin"))},
		{Says: "a node that joins while the operator is down gets the range of another node",
			By:  framework.By(affectedVariant, framework.StepFindings),
			Not: "it is a race, which a start of the operator may win; the report says in which it did not"},
		{Says: "the routers have two origins for the range, and the owner's pods and the outside lose a share of their flows",
			By: framework.By(affectedVariant, framework.StepSymptom, framework.StepAfter("two-origins"), framework.StepObserve)},
		{Says: "with one best path in the routers all pods of one node are lost", Not: "the lab's routers have ECMP"},
		{Says: "the operator knows, and says so in the owner's CiliumNode alone",
			By: framework.By(affectedVariant, framework.StepAfter("operator-knows"))},
		{Says: "the detector names the range and both nodes", By: framework.By(affectedVariant, framework.StepFindings)},
		{Says: "restarting the agents does not help", By: framework.By(affectedVariant, framework.StepRemedy("restart-agents"))},
		{Says: "the fixed operator alone does not help: both CiliumNodes say what they said",
			By: framework.By(affectedVariant, framework.StepRemedy("fixed-operator"))},
		{Says: "the newcomer's CiliumNode made anew while that operator runs gets the same range again",
			By: framework.By(affectedVariant, framework.StepRemedy("join-again"))},
		{Says: "made anew while no operator runs, with the fixed one started then, it gets a range of its own",
			By: framework.By(affectedVariant, framework.StepRemedy("join-without"))},
		{Says: "with 1.12.4 a node that joins while the operator is down gets a range of its own, each time",
			By: framework.By(fixedVariant, framework.StepObserve, framework.StepAfter("own-range"))},
	},
	Diagram: `            outside 10.69.5.10
                 │
     ┌───────────┴───────────┐         network "uplink" 10.69.5.0/24
 .251 tor1               tor2 .252     AS 64524: GoBGP, ECMP
     └──────┬────────┬───────┘         network "nodes"  10.69.4.0/24
   ┌────────┼────────┘
master     new     worker              AS 64513
 .11       .22       .21               pods in 10.69.128.0/17, a /27 each; 400 CiliumNodes more`,
}
