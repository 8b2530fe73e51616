// Package udpblackhole reproduces the incident in which a UDP Service loses its last endpoint,
// and connection tracking goes on sending the packets of a steady sender to the address of the
// pod that is gone.
package udpblackhole

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:  "udp-blackhole",
	Title: "packets of a UDP Service go on to the address of its last pod",
	Source: "kubernetes#139628 and #139629, June 2026, and #130484, March 2025; pkg/proxy/conntrack of k8s.io/kubernetes " +
		"1.31.14, 1.32.2, 1.32.13, 1.34.4, 1.36.3, 1.37.0 and 1.37.2",
	Issue: "https://github.com/kubernetes/kubernetes/issues/139628",
	Symptom: `A Service of statsd is scaled down to no endpoint. Its senders do not notice: 64,000
packets a second go on to the address of the pod that is gone. All converge on the node with
that range of pods, which drops them for 13 hours at 60 to 73% softirq. A sender that starts
anew is told at once that nobody listens (ICMP port unreachable).`,
	Cause: `The kernel chooses the endpoint with the first packet of a connection, and each packet
prolongs the entry in connection tracking. The REJECT rule of a Service without endpoints
matches the Service's address, which such packets no longer have when it is asked.

Up to 1.31 kube-proxy deletes the entries of each UDP endpoint that goes
(DeletedUDPEndpoints). Since 1.32 it compares all entries with the Services' endpoints after
a change of a UDP Service's. kubernetes#130484, which is in 1.33 and was ported back to 1.32
after 1.32.2, has CleanStaleEntries leave out Services without any:

  if endpoints.Len() == 0 { continue }

1.37.0 takes them with an empty set, except for node ports, whose entries it still leaves
alone. When the Service gets an endpoint again, every version deletes the entries.`,
	Affected: "kube-proxy 1.32 after 1.32.2, to 1.36.3, in modes iptables and nftables",
	Fixed:    "1.37.0, but not for node ports; 1.31 to 1.32.2 are not affected yet",
	Remedies: []string{
		"endpoints again",
		"the entries of connection tracking deleted on every node",
		"the sender from another port",
		"kube-proxy 1.37.0",
		"restarting kube-proxy does not help",
	},
	Reproduction: `kube-proxy is the vendor's own program at each version, by kubeadm's manifest, in
modes iptables and nftables. 1.31.14 is built with the types of KubeProxyConfiguration of
0.31.11, as later ones are not available. The pods are wired by the CNI plugins ptp and
host-local, with static routes on the ToR: packets to an address that no pod has go back and
forth between node and ToR until their TTL ends.

The pod is taken out of the Service, and ends only when each node refuses new senders. A pod
that ends at once costs every version the packets until kube-proxy's next sync. A probe is one
connected socket. A packet that is refused counts as answered, one that vanishes is lost. Nodes
send each ICMP error (icmp_ratelimit 0), so that the probe hears of each refused packet; by
default it is one a second for each sender.

host-local is made to give the address out next, as it does by itself when it has come round
its range.

kube-proxy reconciles at its start only if some UDP Service has endpoints, such as that of
CoreDNS. The lab has one besides.

A pass does not prove anything about node ports, which 1.37.0 does not clean up either, about
LoadBalancer addresses, mode ipvs, IPv6, or the load on the node that gets the packets.`,
	Facts: []framework.Fact{
		{Says: "the packets of a steady sender vanish when the last endpoint goes",
			By: framework.By(affectedIPTables, framework.StepSymptom).And(affectedNFTables, framework.StepSymptom)},
		{Says: "a sender from another port is told that nobody listens",
			By: framework.By(affectedIPTables, framework.StepObserve).And(affectedNFTables, framework.StepObserve)},
		{Says: "a pod that is given the address gets the packets of the Service",
			By: framework.By(affectedIPTables, framework.StepAfter("heir-named")).And(affectedNFTables, framework.StepAfter("heir-named"))},
		{Says: "the detector names the pod that gets them",
			By: framework.By(affectedIPTables, framework.StepAfter("heir-named")).And(affectedNFTables, framework.StepAfter("heir-named"))},
		{Says: "it lasts for as long as packets are sent",
			Not: "no run waits for the 13 hours of the report; each remedy begins with packets that still vanish"},
		{Says: "it recovers when the Service gets an endpoint again",
			By: framework.By(affectedIPTables, framework.StepRemedy("endpoints")).And(affectedNFTables, framework.StepRemedy("endpoints"))},
		{Says: "deleting the entries of connection tracking helps",
			By: framework.By(affectedIPTables, framework.StepRemedy("forget")).And(affectedNFTables, framework.StepRemedy("forget"))},
		{Says: "restarting kube-proxy does not help",
			By: framework.By(affectedIPTables, framework.StepRemedy("restart")).And(affectedNFTables, framework.StepRemedy("restart"))},
		{Says: "1.37.0 helps where it comes late",
			By: framework.By(affectedIPTables, framework.StepRemedy("fixed-version")).And(affectedNFTables, framework.StepRemedy("fixed-version"))},
		{Says: "with 1.37.0 and 1.31.14 the steady sender is told that nobody listens",
			By: framework.By(fixedIPTables, framework.StepObserve).And(fixedNFTables, framework.StepObserve).
				And(earlierIPTables, framework.StepObserve)},
	},
	Diagram: `         tor .254          AS 64524, static routes to the pods
      ┌─────┴─────┐        nodes 10.67.4.0/24
   master       worker     pods in 10.67.64.0/20
    .11          .12
   sender       sender     to Service statsd 10.96.0.80:8125/UDP
                statsd     its only endpoint`,
}
