// Package localeverywhere reproduces the incident in which Cilium announces the address of a Service of
// externalTrafficPolicy Local from nodes that have no endpoint of it.
package localeverywhere

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:  "local-everywhere",
	Title: "nodes without an endpoint announce a Service of externalTrafficPolicy Local",
	Source: "cilium#44803, which shows the symptom and not the values; Cilium 1.19.3, 1.19.5 and 1.20.2: " +
		"pkg/loadbalancer/healthserver/healthserver.go (controlLoop) and pkg/bgp/manager/reconciler/service.go (getLoadBalancerIPPaths); " +
		"1.18.6: pkg/bgpv1/manager/reconcilerv2/service.go",
	Issue: "https://github.com/cilium/cilium/issues/44803",
	Symptom: `After an upgrade from Cilium 1.18 to 1.19 every node announces the address of a Service
whose externalTrafficPolicy is Local, whether or not it has an endpoint. Routers share
new connections out between all of them, and nodes without an endpoint drop theirs.
With one endpoint on three nodes two of three connections fail. The agents log nothing.`,
	Cause: `With nodePort.enableHealthCheckLoadBalancerIP the agent serves the healthCheckNodePort of
such a Service at the Service's address. For that it adds a Service of its own,
NAME:healthserver, to its table of frontends: at the same address, with the node itself as
the endpoint, and without labels. Up to 1.18 the BGP control plane reads Services of
Kubernetes. From 1.19 on it reads the table, finds an endpoint on every node, and announces
the address, if the selector of an advertisement selects a Service without labels, as the
catch-all of the vendor's documentation does (somekey NotIn never-used-value).`,
	Affected: "Cilium 1.19.0, 1.19.3, 1.19.5 and 1.19.7 with nodePort.enableHealthCheckLoadBalancerIP and an advertisement of all Services; by reading 1.20.2",
	Fixed:    "Cilium 1.18 up to 1.18.11, or 1.19 without nodePort.enableHealthCheckLoadBalancerIP; no release of 1.19 is known to have a fix",
	Remedies: []string{
		"an advertisement that selects Services by a label",
		"externalTrafficPolicy Cluster, at the price of clients' addresses",
		"nodePort.enableHealthCheckLoadBalancerIP off, and new agents",
		"restarting the agents does not help",
	},
	Reproduction: `Cilium runs whole, by the vendor's charts, in place of kube-proxy, with an address from a
CiliumLoadBalancerIPPool. The fault is an advertisement that selects all Services, in place
of one that selects the Service's label: the same change for all versions. In the report
it is an upgrade. The report has no values: that its cluster had this setting (or
gke.enabled, which sets it) is not known, and the symptom may have other causes.

A pass does not prove anything about DSR, nor about Ingress and Gateway API (Envoy).`,
	Facts: []framework.Fact{
		{Says: "an advertisement that selects the Service by its label is announced by the node with the endpoint alone",
			By: framework.By(affectedVariant, framework.StepBefore("announced"))},
		{Says: "with an advertisement that selects all Services each node announces the address, and a share of new flows is lost",
			By: framework.By(affectedVariant, framework.StepSymptom, framework.StepAfter("everywhere"))},
		{Says: "the agent's own Service is in the table of frontends, at the same address",
			By: framework.By(affectedVariant, framework.StepAfter("health-service"))},
		{Says: "the detector names the address and the routers that send it to nodes without an endpoint",
			By: framework.By(affectedVariant, framework.StepFindings)},
		{Says: "restarting an agent does not help", By: framework.By(affectedVariant, framework.StepRemedy("restart-agent"))},
		{Says: "a selector on a label helps, and so do externalTrafficPolicy Cluster, and agents without the setting",
			By: framework.By(affectedVariant, framework.StepRemedy("selector"), framework.StepRemedy("policy-cluster"),
				framework.StepRemedy("setting-off"))},
		{Says: "with the same objects Cilium 1.18 announces from the node with the endpoint alone",
			By: framework.By(fixedVariant, framework.StepObserve, framework.StepAfter("one-node"))},
	},
	Diagram: `         outside 10.74.5.10
              │                network "uplink" 10.74.5.0/24
          .254 tor             AS 64524: GoBGP, ECMP
     ┌────────┼────────┐       network "nodes"  10.74.4.0/24
  master   worker1  worker2    AS 64513, pods 10.74.64.0/20
   .11       .21      .22
          the endpoint         Service local 10.74.128.1, externalTrafficPolicy Local`,
}
