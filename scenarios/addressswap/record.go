// Package addressswap reproduces the incident in which a restart of MetalLB's controller gives the address of a Service
// to another one.
package addressswap

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:  "address-swap",
	Title: "a restart of MetalLB's controller gives the addresses of Services to others",
	Source: "metallb#2443, #1774, #1984 and #2479; reprocessAll in internal/k8s/controllers/service_controller_reload.go of " +
		"0.13.5 to 0.14.8; release notes of 0.14.2 (#2004)",
	Issue: "https://github.com/metallb/metallb/issues/2443",
	Symptom: `There are more Services than addresses, and some have waited for one for long. The
controller is restarted: its node is drained, or it is upgraded. From then on clients of
one application reach another one. Nothing is down: the address answers, and is announced
as before. Services have changed their addresses, or have none, although nobody has
touched them. spec.loadBalancerIP has not kept the address.`,
	Cause: `The controller knows from the status of Services alone which addresses are in use, and a
new one knows nothing until it has processed them. Up to 0.13.12 it processes all Services
in the order of a map of Go, which is random. One that waits and comes before the owner of
an address gets that address. The owner is then refused its own ("current IP not allowed by
config, clearing"), and takes the next free one, which may be another Service's, or none.
Before 0.13.8 the owner keeps the address in its status, beside those that took it.`,
	Affected: "MetalLB 0.13.0 to 0.13.12",
	Fixed:    "0.14.2, which processes Services first that have an address; 0.14.5 runs here",
	Remedies: []string{
		"Services that have wrong addresses made anew, when the pool has enough for all",
		"a pool with enough addresses, before it happens",
		"0.14.5 prevents it, and gives no address back",
		"more addresses afterwards give no address back either",
		"spec.loadBalancerIP does not help, nor does making the Service anew: its address is in use",
	},
	Reproduction: `MetalLB runs whole, by the vendor's chart, with its own BGP. A pool has two addresses, and
the Services shop and bank, each with a pod of its own, ask for them by spec.loadBalancerIP.
40 Services more wait for an address, and have a third pod behind them. The controller's
pod is deleted, up to four times: one restart may by chance come out well (metallb#1984
says "again and again"). Each pod says in its answer which one it is, and an answer of a
wrong pod is a loss.

0.13.11 and 0.14.2 are not published as Go modules, and Go's checksum database lacks 0.13.10
and 0.14.3: with GONOSUMDB=go.universe.tf/metallb in the environment --with takes them. A
pass does not prove anything about announcements by layer 2, nor about Services that share addresses by a key.`,
	Facts: []framework.Fact{
		{Says: "the detector says beforehand that Services wait beside a full pool of a version that may give addresses away",
			By: framework.By(affectedVariant, framework.StepBaseline).And(reportedVariant, framework.StepBaseline)},
		{Says: "after a restart both addresses are those of Services that waited, and their clients reach another application",
			By: framework.By(affectedVariant, framework.StepSymptom, framework.StepAfter("answered")).
				And(reportedVariant, framework.StepSymptom, framework.StepAfter("answered"))},
		{Says: "0.13.12 has it, as metallb#2443 says", By: framework.By(affectedVariant, framework.StepSymptom)},
		{Says: "the detector names both addresses",
			By: framework.By(affectedVariant, framework.StepFindings).And(reportedVariant, framework.StepFindings)},
		{Says: "a Service that is made anew with spec.loadBalancerIP does not get its address back",
			By: framework.By(affectedVariant, framework.StepRemedy("recreate"))},
		{Says: "neither 0.14.5 nor more addresses give an address back",
			By: framework.By(affectedVariant, framework.StepRemedy("upgrade"), framework.StepRemedy("more-addresses"))},
		{Says: "then making the Services anew that have the addresses does",
			By: framework.By(affectedVariant, framework.StepRemedy("give-back"))},
		{Says: "with 0.14.5, and with enough addresses, restarts change nothing",
			By: framework.By("metallb-"+fixed, framework.StepObserve).And(roomVariant, framework.StepObserve)},
	},
	Diagram: `            outside 10.75.5.10
                 │
     ┌───────────┴───────────┐         network "uplink" 10.75.5.0/24
 .251 tor1               tor2 .252     AS 64524: GoBGP, ECMP
     └──────┬────────┬───────┘         network "nodes"  10.75.4.0/24
   ┌────────┼────────┘
master   worker1   worker2             AS 64513, announce 10.75.128.2/31
 .11       .21       .22
others     shop      bank`,
}
