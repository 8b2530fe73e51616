// Package addednic reproduces the incident in which a node gets a second
// network card, and Calico moves its BGP to that card's address.
package addednic

import (
	"slices"

	"github.com/relapse-dev/relapse/framework"
)

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "added-nic",
	Title:  "a new network card moves Calico's BGP to the wrong address",
	Source: "production, Calico with its default autodetection; node/pkg/lifecycle/startup of Calico 3.28",
	Symptom: `Suddenly many pods time out, and the cause looks like DNS. Nobody has changed
Kubernetes. What was noted then:

  1. whatever needs DNS times out
  2. what needs no DNS works
  3. pods on CoreDNS's own node are fine
  4. nodes reach each other
  5. pods on that node reach no pod elsewhere, unless they use hostNetwork

The hypervisor had given the node that runs CoreDNS a second network card, in
a subnet that the other nodes cannot reach.`,
	Cause: `calico-node takes its node's address from the first interface that it finds
(IP_AUTODETECTION_METHOD=first-found, the default), and goes through them from
the last to the first: the newest card wins. calico-node -monitor-addresses
looks again every 60 s, so it takes no restart. The address goes into the Node's
annotation projectcalico.org/IPv4Address, from there into every node's
bird.cfg: as router id and source address on that node, as neighbor on the others.
All of its sessions drop, and with them its routes to the others' pods and theirs
to its own.`,
	Affected: "Calico with IP_AUTODETECTION_METHOD=first-found, which is the default",
	Fixed:    "not a matter of version: kubernetes-internal-ip",
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
asked for each second, and calico-node rolled on all nodes at once. kube-proxy (iptables) and CoreDNS are as kubeadm makes
them, but for CoreDNS's place: one pod, on worker1. redis and repo-server stand for
argocd-redis and argocd-repo-server; they, and the other workloads, are probes.

In first-found Calico looks for its address every 60 s, its default. It is 10
minutes in first-found-restarted, where the card waits for a restart of
calico-node, and 5 s in kubernetes-internal-ip, to see soon that Calico passes the
card over.

What the operator makes of an Installation is asked of its own renderer (1.34.3, of
the line for Calico 3.28), in a pod; the operator itself does not run.

hostNetwork helps pods that talk to nodes, or to pods with hostNetwork: natOutgoing
is on, by default, and hides them behind their node, to which there is a way back. The
node itself has no route to the others' pods either.

A pass does not prove anything about other ways to an address that Calico should
not take, nor about encapsulated pools, whose tunnels hang on the same address.`,
	Facts: []framework.Fact{
		{
			Says: "a day before the symptom nothing is wrong; from the card on, and up to a minute before the symptom, the detector says where Calico will move",
			By: slices.Concat(
				framework.By("first-found", "baseline"),
				framework.By("first-found-restarted", "lesser form: the card is there, and Calico has not looked yet"),
			),
		},
		{
			Says: "1: what needs DNS times out",
			By: slices.Concat(
				framework.By("first-found", "symptom", "after: fact 1: what needs DNS times out"),
				framework.By("first-found-restarted", "symptom"),
			),
		},
		{
			Says: "2: what needs no DNS works",
			By:   framework.By("first-found", "after: fact 2: what needs no DNS works"),
		},
		{
			Says: "3: pods on CoreDNS's own node are fine",
			By:   framework.By("first-found", "after: fact 3: pods on CoreDNS's own node are fine"),
		},
		{
			Says: "4: nodes reach each other",
			By:   framework.By("first-found", "after: fact 4: nodes reach each other"),
		},
		{
			Says: "5: pods on that node reach no pod elsewhere, unless they use hostNetwork",
			By:   framework.By("first-found", "after: fact 5: pods on that node reach no pod elsewhere, unless it uses hostNetwork"),
		},
		{
			Says: "hostNetwork helps because natOutgoing, on by default, hides such pods behind their node",
			Not:  "seen with natOutgoing off: then beside-dns loses all packets to a pod with hostNetwork as well; no variant asserts it",
		},
		{
			Says: "the Node's annotation is not its InternalIP, and no session with the node is up",
			By: slices.Concat(
				framework.By("first-found", "after: Calico speaks for worker1 from the card's address, and no session with it is up"),
				framework.By("first-found-restarted", "after: Calico speaks for worker1 from the card's address, and no session with it is up"),
			),
		},
		{
			Says: "no restart is needed: Calico looks for its address again by itself",
			By:   framework.By("first-found", "symptom", "after: calico-node was not restarted"),
		},
		{
			Says: "a restart brings it about where Calico has not looked again",
			By:   framework.By("first-found-restarted", "lesser form: the card is there, and Calico has not looked yet", "symptom"),
		},
		{
			Says: "after such a restart the node itself reaches the others' pods no more",
			Not:  "its routes stay for as long as a run looks; BIRD's time for a graceful restart is 240 s by default, which no run waits for",
		},
		{
			Says: "the detector names the node, the address, the interface, and that this appeared after boot",
			By:   framework.By("first-found", "detectors", "after: the detector names the node, the address, the interface, and that this appeared after boot"),
		},
		{
			Says: "it does not heal by itself",
			Not:  "no run waits for it. Once, with --wait 10m, not one packet got through in ten minutes (2026-11-22)",
		},
		{
			Says: "restarting calico-node does not help",
			By: slices.Concat(
				framework.By("first-found", "no remedy: restart calico-node"),
				framework.By("first-found-restarted", "after: calico-node on worker1 is not ready, for want of BGP sessions"),
			),
		},
		{
			Says: "calico-node, restarted, is ready again once the card is taken away, at its next look and with no other restart",
			By:   framework.By("first-found", "remedy: take the card away"),
		},
		{
			Says: "restarting kube-proxy does not help",
			By:   framework.By("first-found", "no remedy: restart kube-proxy"),
		},
		{
			Says: "kubernetes-internal-ip helps, once the pods are rolled",
			By:   framework.By("first-found-restarted", "remedy: kubernetes-internal-ip"),
		},
		{
			Says: "the operator's nodeAddressAutodetectionV4: NodeInternalIP is the same remedy",
			By:   framework.By("kubernetes-internal-ip", "before: the operator writes an Installation's {kubernetes: NodeInternalIP} as kubernetes-internal-ip"),
			Not:  "the operator's code is asked what it renders; it does not run as a controller",
		},
		{
			Says: "natOutgoing is Calico's switch for what masquerade-drift is about: where a router knows the way to the pods, it hides them all the same, and the detector names the rule",
			By:   framework.By("kubernetes-internal-ip", "lesser form: natOutgoing of the pool is switched on, and the router knows the way to the pods"),
		},
		{
			Says: "can-reach with an address of the nodes' network helps",
			By:   framework.By("first-found-restarted", "remedy: can-reach=10.50.0.254"),
		},
		{
			Says: "with kubernetes-internal-ip set, the same card changes nothing",
			By:   framework.By("kubernetes-internal-ip", "no probe is hurt", "after: Calico has looked for the address of worker1 with the card there", "after: Calico's addresses are the Nodes' InternalIPs, and every session is up"),
		},
	},
	Diagram: `             gw               knows 10.50.0.0/24 only
    ┌─────────┼─────────┐     nodes 10.50.0.0/24
 master    worker1   worker2  AS 64512, mesh, pods 10.52.0.0/16
            CoreDNS
              │eth1           added: 10.51.7.21/24`,
}
