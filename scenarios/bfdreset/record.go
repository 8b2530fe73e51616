// Package bfdreset reproduces the incident in which each change of a Service resets all BGP
// sessions of MetalLB's nodes.
package bfdreset

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "bfd-reset",
	Title:  "with a BFD profile, each new Service resets all BGP sessions",
	Source: "metallb#1944 and #2454 (the fix); internal/bgp/frr/templates/neighborsession.tmpl of 0.14.5 and 0.14.8; frr-reload.py of FRR 10.3",
	Issue:  "https://github.com/metallb/metallb/pull/2454",
	Symptom: `Whenever somebody creates or deletes a Service of type LoadBalancer, the routes of all
Services are gone from the routers for a second or two, and connections to all of
them stall or end. MetalLB, nodes and links are well, and the BGP sessions are never
older than the newest Service.`,
	Cause: `For a peer with a BFD profile the speaker writes "neighbor A bfd profile P" into FRR's
configuration. What FRR then shows of it are two lines, this one and "neighbor A bfd".
frr-reload.py compares both at each change, finds that the second is not wanted, and
runs "no neighbor A bfd", which ends the BFD session. The router sees BFD go down, and
ends the BGP session (Cease, BFD Down). The profile is then added again. The speakers
of all nodes do so at the same moment. 0.14.6 writes both lines.`,
	Affected: "MetalLB up to 0.14.5 in FRR mode, with a BFD profile",
	Fixed:    "0.14.6",
	Remedies: []string{
		"MetalLB 0.14.8",
		"taking the BFD profile off the peers, which costs its fast detection, and new speakers: the old ones may wait for minutes before they open a session again",
		"restarting the speakers does not help",
	},
	Reproduction: `MetalLB runs whole, installed by the vendor's chart in FRR mode, with Debian 13's FRR
10.3 in place of 8.5.2 (0.13.12) and 9.1.0: its frr-reload.py and the two lines are
the same. The ToR is FRR 10.3 with bfdd, without graceful restart. worker1 and worker2
announce two Services with externalTrafficPolicy Local, one each, so that the loss of
one session shows. A third Service is created and deleted in turn, every 5 s, as a
pipeline does that deploys previews. 0.14.8 runs in place of 0.14.6, which is not
published as a Go module.

A pass does not prove anything about the mode frr-k8s, which had the same fault of its
own (frr-k8s#169), nor about routers other than FRR: what they do when a neighbour takes
BFD away is their own decision.`,
	Facts: []framework.Fact{
		{Says: "before the first change sessions and routes are up, and the detector names the version and the peer",
			By: framework.By(affectedVariant, framework.StepBaseline).And(firstVariant, framework.StepBaseline)},
		{Says: "each change interrupts the traffic to other Services, which nobody has touched",
			By: framework.By(affectedVariant, framework.StepSymptom, framework.StepObserve).
				And(firstVariant, framework.StepSymptom, framework.StepObserve)},
		{Says: "the detector finds that sessions are reset after a Service has changed, while speakers are the same",
			By: framework.By(affectedVariant, framework.StepFindings).And(firstVariant, framework.StepFindings)},
		{Says: "new speakers do the same", By: framework.By(affectedVariant, framework.StepRemedy("restart-speakers"))},
		{Says: "without the BFD profile, and with new speakers, changes interrupt nothing",
			By: framework.By(affectedVariant, framework.StepRemedy("no-bfd"))},
		{Says: "0.14.8 keeps the sessions", By: framework.By(affectedVariant, framework.StepRemedy("metallb-0-14-8"))},
		{Says: "with 0.14.8 the same changes reach the router and interrupt nothing",
			By: framework.By(fixedVariant, framework.StepObserve, framework.StepAfter("announced"))},
		{Says: "without a BFD profile 0.14.5 interrupts nothing",
			By: framework.By(withoutVariant, framework.StepObserve, framework.StepAfter("announced"))},
	},
	Diagram: `            outside 10.76.5.10
                 │                       network "uplink" 10.76.5.0/24
             tor .254                    AS 64524: FRR with bfdd
     ┌──────┬────┴───┐                   network "nodes"  10.76.4.0/24
  master  worker1  worker2               AS 64513: MetalLB with FRR and bfdd
   .11      .21      .22                 both workers announce 10.76.128.0/24`,
}
