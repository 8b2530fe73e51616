// Package nftcrash reproduces the incident in which kube-proxy in mode nftables can write no rule any more, because nft
// of its image crashes at a set of another program.
package nftcrash

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:  "nft-crash",
	Title: "another program's set crashes the nft of kube-proxy, and rules are no longer written",
	Source: "kubernetes#136786, #137501, #140405 and #140898, calico#11750, k0s#7293, istio#58492, 2026; build/common.sh and go.mod of " +
		"k8s.io/kubernetes 1.34.4 to 1.37.0",
	Issue: "https://github.com/kubernetes/kubernetes/issues/136786",
	Symptom: `kube-proxy runs in mode nftables on nodes of Debian 13 or RHEL 10. Somebody starts a
firewall on them. Nothing happens, until an endpoint of a Service is replaced: connections
to the Service go on to the pod that is gone, while the new one is ready and idle.
kube-proxy logs "nftables sync failed: signal: segmentation fault" every 30 seconds; its
/healthz says that it is healthy.`,
	Cause: `From 1.1.2 on nft writes beside a set of a plain type (type ifname, type ipv4_addr) how
its key is described. Up to 1.1.1 it has no reader for this description, and calls a
function that is not there when it reads sets: of any table, whoever owns it. kube-proxy
runs the nft of its own image, Debian 12's 1.0.6. There nft -f reads the sets of all
tables as soon as it has a rule or an element to add.

knftables 0.0.21, in kube-proxy from 1.34.7 and 1.35.4 on, no longer lists the sets of
other tables. That is not enough: kube-proxy 1.35.4 crashes nft when it writes. Images
since July 2026 have nft 1.0.6.1 (distroless-iptables 0.9.4 and 0.8.12), which can read
the description.`,
	Affected: "kube-proxy in mode nftables, up to 1.34.9, 1.35.6 and 1.36.2 by the base of their images",
	Fixed:    "1.34.10, 1.36.3, 1.37.0, whose images have a patched nft",
	Remedies: []string{
		"the set away",
		"kube-proxy 1.36.3 with the nft of its image",
		"mode iptables, before it happens",
		"restarting kube-proxy does not help, and a first sync that fails is tried again after an hour, or when a Service changes",
	},
	Reproduction: `kube-proxy is the vendor's own program, by kubeadm's manifest. The set comes from
Debian 13's nft 1.1.3 in a pod with the node's network. The images have Debian 12's nft
1.0.6, as the vendor's have. nft 1.0.6.1 is not in Debian: in its place the image of
1.36.3 has Debian 13's 1.1.3, which reads such sets too. So 1.36.3 is fixed here by
its nft, as in production, but not by the same version of nft.

The pods are wired by the CNI plugins ptp and host-local, with static routes on the ToR.
The new endpoint is ready before the old pod ends.

A pass does not prove anything about RHEL's nft, nor about Calico's and Istio's own use of nft.`,
	Facts: []framework.Fact{
		{Says: "the set alone harms nobody, and the detector names it", By: framework.By(affectedVariant, framework.StepPrecursor("set"))},
		{Says: "the Service leads to a pod that is gone",
			By: framework.By(affectedVariant, framework.StepSymptom).And(listingVariant, framework.StepSymptom)},
		{Says: "the rules are not what the EndpointSlices say", By: framework.By(affectedVariant, framework.StepFindings)},
		{Says: "it recovers when the set is gone", By: framework.By(affectedVariant, framework.StepRemedy("set-away"))},
		{Says: "restarting kube-proxy does not help", By: framework.By(affectedVariant, framework.StepRemedy("restart"))},
		{Says: "a patched nft helps where it comes late", By: framework.By(affectedVariant, framework.StepRemedy("fixed-version"))},
		{Says: "with a patched nft, and in mode iptables, the Service leads to the new pod",
			By: framework.By(fixedVariant, framework.StepObserve).And(iptablesVariant, framework.StepObserve)},
	},
	Diagram: `         tor .254          AS 64524, static routes to the pods
      ┌─────┴─────┐        nodes 10.73.4.0/24, each with a firewall of Debian 13
   master       worker     pods in 10.73.64.0/20
    .11          .12
   client       client     to Service web 10.96.0.90:80/UDP
                one, two   its endpoint is one, then two`,
}
