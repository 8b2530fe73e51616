// Package cordonwithdraws reproduces the incident in which cordoning nodes withdraws the
// addresses of Services from the routers.
package cordonwithdraws

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:  "cordon-withdraws",
	Title: "kubectl cordon withdraws LoadBalancer addresses from the routers",
	Source: "MetalLB's release notes of 0.14.9 (#2470) and 0.15.0 (#2715, the revert); speaker/bgp_controller.go and " +
		"internal/k8s/nodes of 0.14.8, 0.14.9 and 0.15.2",
	Issue: "https://github.com/metallb/metallb/pull/2715",
	Symptom: `Before a maintenance an operator cordons nodes, which is documented to do no more than
to keep new pods away. From that moment on the routers have no route over these
nodes to the addresses of Services of type LoadBalancer. Where a pool is announced
by a few nodes, and these are cordoned together, its addresses are gone, although
pods, nodes and BGP sessions are well.`,
	Cause: `From 0.14.9 on the speaker's ShouldAnnounce asks IsNodeAvailable, which is false for
a node with spec.unschedulable, and a change of that field makes the speaker
process all Services again. 0.14.8 asks for the condition NetworkUnavailable and the
label node.kubernetes.io/exclude-from-external-load-balancers alone. 0.15.0 took the
change back.`,
	Affected: "MetalLB 0.14.9, with native BGP and with FRR",
	Fixed:    "0.15.0 (0.14.8 does not have it yet)",
	Remedies: []string{
		"uncordon the nodes",
		"0.14.8",
		"0.15.2",
	},
	Reproduction: `MetalLB runs whole, installed by the vendor's chart: controller, and speakers with
their own BGP or with FRR, Debian 13's 10.3 in place of 9.1.0. The cluster is kind's,
with kube-proxy in mode iptables; pods are wired by the CNI plugin ptp, and the ToRs
have static routes to them. A BGPAdvertisement selects worker1 and worker2, as where
only some nodes have uplinks. Two Services have a pod on worker1 behind them, one with
externalTrafficPolicy Cluster and one with Local. 0.15.2 runs in place of 0.15.0, which
is not published as a Go module.

A restart of the speakers is not judged: a speaker that reads a Service before its own
Node announces the Service, and does so until the Node changes. A pass does not prove
anything about announcements by layer 2, for which 0.14.9 has the same condition, nor
about the mode frr-k8s.`,
	Facts: []framework.Fact{
		{Says: "before the cordon both ToRs have both addresses, that of externalTrafficPolicy Cluster by two next hops",
			By: framework.By(affectedNative, framework.StepBaseline, framework.StepBefore("announced")).
				And(affectedFRR, framework.StepBefore("announced"))},
		{Says: "cordoning the announcing nodes makes both addresses unreachable, and pods on the cordoned nodes are reached as before",
			By: framework.By(affectedNative, framework.StepSymptom, framework.StepObserve).
				And(affectedFRR, framework.StepSymptom, framework.StepObserve)},
		{Says: "the BGP sessions of the cordoned nodes stay up",
			By: framework.By(affectedNative, framework.StepAfter("sessions-up")).And(affectedFRR, framework.StepAfter("sessions-up"))},
		{Says: "the detector names both addresses, the nodes that should announce them, and that these are unschedulable",
			By: framework.By(affectedNative, framework.StepFindings).And(affectedFRR, framework.StepFindings)},
		{Says: "uncordoning brings the addresses back", By: framework.By(affectedNative, framework.StepRemedy("uncordon")).
			And(affectedFRR, framework.StepRemedy("uncordon"))},
		{Says: "0.14.8 and 0.15.2 announce from cordoned nodes",
			By: framework.By(affectedNative, framework.StepRemedy("metallb-0-14-8"), framework.StepRemedy("metallb-0-15-2"))},
		{Says: "with 0.14.8 and with 0.15.2 the same cordon withdraws nothing",
			By: framework.By("metallb-0.14.8", framework.StepObserve).And("metallb-0.15.2", framework.StepObserve).
				And("metallb-0.15.2-frr", framework.StepObserve)},
		{Says: "with 0.14.8 and with 0.15.2 cordoned nodes announce a new Service, too",
			By: framework.By("metallb-0.14.8", framework.StepAfter("announces-more")).And("metallb-0.15.2", framework.StepAfter("announces-more")).
				And("metallb-0.15.2-frr", framework.StepAfter("announces-more"))},
	},
	Diagram: `            outside 10.66.5.10
                 │
     ┌───────────┴───────────┐         network "uplink" 10.66.5.0/24
 .251 tor1               tor2 .252     AS 64524: GoBGP, ECMP
     └──────┬────────┬───────┘         network "nodes"  10.66.4.0/24
   ┌────────┼────────┘
master   worker1   worker2             AS 64513
 .11       .21       .22               worker1 and worker2 announce 10.66.128.0/24`,
}
