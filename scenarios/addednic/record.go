// Package addednic reproduces the incident in which a node gets a second
// network card, and Calico moves its BGP to that card's address.
package addednic

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "added-nic",
	Title:  "a new network card moves Calico's BGP to the wrong address",
	Source: "production, Calico with its default autodetection; node/pkg/lifecycle/startup of Calico 3.28",
	Symptom: `Suddenly many pods time out, and the cause looks like DNS. Kubernetes was not
changed. These were the observations:

  1. everything that needs DNS times out
  2. connections that need no DNS work
  3. pods on CoreDNS's own node are fine
  4. nodes reach each other
  5. pods on that node reach no pod elsewhere, unless they use hostNetwork

The hypervisor had given the node that runs CoreDNS a second network card, in
a subnet that the other nodes cannot reach.`,
	Cause: `calico-node takes its node's address from the first interface that it finds
(IP_AUTODETECTION_METHOD=first-found, the default), and goes through them from
the last to the first: the newest card wins. calico-node -monitor-addresses
checks again every 60 s, so no restart is needed. The address goes into the Node's
annotation projectcalico.org/IPv4Address, from there into every node's
bird.cfg: as router id and source address on that node, as neighbor on the others.
All of its sessions drop, and with them its routes to the others' pods and theirs
to its own.`,
	Affected: "Calico with IP_AUTODETECTION_METHOD=first-found, which is the default",
	Fixed:    "no version; IP_AUTODETECTION_METHOD=kubernetes-internal-ip",
	Remedies: []string{
		"IP_AUTODETECTION_METHOD=kubernetes-internal-ip (the operator's nodeAddressAutodetectionV4: NodeInternalIP), pods rolled",
		"can-reach with an address of the nodes' network",
		"restarting calico-node does not help",
		"restarting kube-proxy does not help",
	},
	Reproduction: `Calico is the vendor's: calico-node whole (startup, monitor-addresses, confd,
felix) under its own runit services, CNI plugin and IPAM, manifest. BIRD is Debian's
1.6.8 in place of the vendor's fork of it: confd's templates do not set krt_tunnel
for pools without encapsulation, which is all that 1.6.8 would refuse. The pool has
no encapsulation, the nodes a full mesh. kube-controllers is left out. Readiness is
polled every second, and calico-node is rolled on all nodes at once. kube-proxy
(iptables) and CoreDNS are as kubeadm installs them, except that CoreDNS is one pod, on
worker1. redis and repo-server represent argocd-redis and argocd-repo-server; they, and
the other workloads, are probes.

In first-found Calico checks its address every 60 s, its default. The interval is 10
minutes in first-found-restarted, where the card takes effect at a restart of
calico-node, and 5 s in kubernetes-internal-ip, so that the run soon sees that Calico
ignores the card.

hostNetwork helps pods that talk to nodes, or to pods with hostNetwork: natOutgoing
is on, by default, and translates their addresses to that of their node, to which there
is a route back. The node itself has no route to the others' pods either.

A pass does not prove anything about other causes for which Calico takes a wrong
address, nor about encapsulated pools, whose tunnels depend on the same address.`,
	Facts: []framework.Fact{
		{Says: "before the card is plugged in nothing is wrong; from then on, up to a minute before the symptom, the " +
			"detector names the address that Calico will move to",
			By: framework.By(firstFound, framework.StepBaseline).And(restarted, framework.StepPrecursor("card-unnoticed"))},
		{Says: "1: what needs DNS times out",
			By: framework.By(firstFound, framework.StepSymptom, framework.StepAfter("dns-times-out")).And(restarted, framework.StepSymptom)},
		{Says: "2: what needs no DNS works", By: framework.By(firstFound, framework.StepAfter("no-dns-works"))},
		{Says: "3: pods on CoreDNS's own node are fine", By: framework.By(firstFound, framework.StepAfter("same-node-works"))},
		{Says: "4: nodes reach each other", By: framework.By(firstFound, framework.StepAfter("nodes-reach-each-other"))},
		{Says: "5: pods on that node reach no pod elsewhere, unless they use hostNetwork",
			By: framework.By(firstFound, framework.StepAfter("pods-cut-off"))},
		{Says: "hostNetwork helps because natOutgoing, on by default, hides such pods behind their node",
			Not: "seen with natOutgoing off: then beside-dns loses all packets to a pod with hostNetwork as well; no variant asserts it"},
		{Says: "the Node's annotation is not its InternalIP, and no session with the node is up",
			By: framework.By(firstFound, framework.StepAfter("address-moved")).And(restarted, framework.StepAfter("address-moved"))},
		{Says: "no restart is needed: Calico checks its address again by itself",
			By: framework.By(firstFound, framework.StepSymptom, framework.StepAfter("not-restarted"))},
		{Says: "a restart causes it if Calico has not checked its address again",
			By: framework.By(restarted, framework.StepPrecursor("card-unnoticed"), framework.StepSymptom)},
		{Says: "after such a restart the node itself no longer reaches the others' pods",
			Not: "its routes stay for the whole run; BIRD's time for a graceful restart is 240 s by default, which no run waits for"},
		{Says: "the detector names the node, the address, the interface, and that this appeared after boot",
			By: framework.By(firstFound, framework.StepFindings, framework.StepAfter("card-reported"))},
		{Says: "it does not recover by itself",
			Not: "no run waits for it. In one run with --wait 10m, every packet was lost for ten minutes (2026-11-22)"},
		{Says: "restarting calico-node does not help",
			By: framework.By(firstFound, framework.StepRemedy("restart-calico-node")).And(restarted, framework.StepAfter("not-ready"))},
		{Says: "calico-node, restarted, is ready again once the card is removed, when it next checks its address and without another restart",
			By: framework.By(firstFound, framework.StepRemedy("remove-card"))},
		{Says: "restarting kube-proxy does not help", By: framework.By(firstFound, framework.StepRemedy("restart-kube-proxy"))},
		{Says: "kubernetes-internal-ip helps, once the pods are rolled", By: framework.By(restarted, framework.StepRemedy("internal-ip"))},
		{Says: "the operator's nodeAddressAutodetectionV4: NodeInternalIP is the same remedy",
			Not: "no run asserts it: the operator does not run. Its renderer, at 1.34.3, was last seen to make IP_AUTODETECTION_METHOD=kubernetes-internal-ip of it on 2026-11-27"},
		{Says: "natOutgoing is Calico's switch for the behaviour of masquerade-drift: it hides pods' addresses even where a " +
			"router has a route to them, and the detector names the rule",
			By: framework.By(internalIP, framework.StepPrecursor("nat-outgoing"))},
		{Says: "can-reach with an address of the nodes' network helps", By: framework.By(restarted, framework.StepRemedy("can-reach"))},
		{Says: "with kubernetes-internal-ip set, the same card changes nothing",
			By: framework.By(internalIP, framework.StepObserve, framework.StepAfter("address-looked-for"),
				framework.StepAfter("addresses-and-sessions"))},
	},
	Diagram: `        gw .254               has routes to the nodes' network alone
┌─────────┼─────────┐         nodes 10.50.0.0/24
master    worker1   worker2   AS 64512, node-to-node mesh
.11        .21       .22      pods in 10.52.0.0/16
          CoreDNS
           │eth1              the added card: 10.51.7.21/24, alone on its network`,
}
