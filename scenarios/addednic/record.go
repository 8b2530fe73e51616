// Package addednic reproduces the incident in which a node gets a second
// network card, and Calico moves its BGP to that card's address.
package addednic

import "github.com/relapse-dev/relapse/framework"

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

Calico looks for its address every 5 s in place of every 60 in all variants but
first-found-restarted, where it is 10 minutes: there the card waits for a restart
of calico-node.

hostNetwork helps pods that talk to nodes, or to pods with hostNetwork. The
node itself has no route to the others' pods either.

A pass does not prove anything about other ways to an address that Calico should
not take, nor about encapsulated pools, whose tunnels hang on the same address.`,
	Diagram: `             gw               knows 10.50.0.0/24 only
    ┌─────────┼─────────┐     nodes 10.50.0.0/24
 master    worker1   worker2  AS 64512, mesh, pods 10.52.0.0/16
            CoreDNS
              │eth1           added: 10.51.7.21/24`,
}
