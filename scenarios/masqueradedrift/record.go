// Package masqueradedrift reproduces the incident in which an upgrade of
// Cilium, with its ConfigMap untouched, starts to hide the pods' addresses
// from a database that grants by address.
package masqueradedrift

import (
	"slices"

	"github.com/relapse-dev/relapse/framework"
)

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "masquerade-drift",
	Title:  "an upgrade starts hiding pod addresses",
	Source: "production, Cilium 1.8.1 to 1.11.1 with BGP and routable pods; cilium#12456; pkg/option and pkg/datapath/iptables of Cilium 1.8 to 1.12",
	Issue:  "https://github.com/cilium/cilium/issues/12456",
	Symptom: `After an upgrade of Cilium with its ConfigMap unchanged, a MySQL server that
grants to the pod range only refuses the application: it sees the address of
the node. Traffic between pods and into the native CIDR is as before, and
where iptables masquerade so are connections from before the upgrade: nobody
notices until they end.`,
	Cause: `The key that switches masquerading off was renamed, and the old name is
dropped without a word:

  version  masquerade                enable-ipv4-masquerade  native-routing-cidr
  1.8      read, default true        ignored                 read
  1.10     deprecated, still read    read, default true      deprecated, read
  1.11     ignored                   read, default true      deprecated, read
  1.12     ignored                   read, default true      ignored

A cluster that had it off under the old name has it on with 1.11: the agent
writes "-s <node's pods> ! -d <native CIDR> ... cilium masquerade non-cluster".
1.10 refuses to start if both names are set; 1.11 refuses both names of the
native CIDR; 1.12 refuses to start without the new one, if masquerading is on.

In the incident's own cluster it was on all the time, by BPF, and a bug hid it:
in 1.8.1 bpf_host.c leaves the call out with BPF NodePort in plain DSR mode
(cilium#12456, fixed in 1.8.2). No key changes its meaning, so that nothing in
the configuration tells of it. And BPF programs look at each packet: flows from
before the upgrade change their address in the middle.`,
	Affected: "Cilium 1.8.1 to 1.11.1, configuration unchanged",
	Fixed:    "the configuration translated to the new keys first",
	Remedies: []string{
		`the new keys (enable-ipv4-masquerade: "false", enable-bpf-masquerade: "false", ipv4-native-routing-cidr), agents restarted, translated connections forgotten`,
		"restarting the agents does not help",
	},
	Reproduction: `The cluster is kind's: real API server, kubelets and containerd. The databases
are Debian's MariaDB 10.11, the client is go-sql-driver/mysql. Cilium's agent
runs as a slice at each version: the vendor's flags, ConfigMap reading, checks
and iptables rules (images/cilium/rules/rules.go says it line by line). Pods are
wired by the CNI plugins ptp and host-local. The ToR has static routes to the
pods, in place of BGP.

In default-on the slice attaches BPF as well: from-netdev and to-netdev of the
version's bpf_host.c to the nodes' card. The vendor's code writes the headers
from the ConfigMap, compiles, and sets the card's values; loading, attaching and
telling which addresses are pods' is ours (images/cilium/rules/datapath). To the
incident's keys come "partial" kube-proxy replacement and legacy host routing:
Cilium's programs of pods and sockets are not there. That 1.8.2 masquerades in
the same mode, and 1.8.1 in hybrid mode, is shown without a cluster (package
bpfhost, lab test).

The other variants show the drift of the keys, with masquerading by iptables.

With --images=upstream the slices are built all the same, and only the control
plane's images are the vendor's.

A pass does not prove anything about a whole agent's datapath, nor about
ip-masq-agent, tunnels or IPv6.`,
	Facts: []framework.Fact{
		{
			Says: "before the upgrade the application connects, and the database sees the pods' addresses",
			By: slices.Concat(
				framework.By("off-by-old-key", "baseline", "before: the database outside sees the pods' own addresses"),
				framework.By("default-on", "baseline", "before: the database outside sees the pods' own addresses"),
			),
		},
		{
			Says: "after it the application is denied at the node's address, by the client's error and the server's log",
			By: slices.Concat(
				framework.By("off-by-old-key", "symptom", "after: the application is denied at the nodes' addresses, by the error that it gets", "after: the server's log denies the application at the nodes' addresses"),
				framework.By("default-on", "symptom", "after: the application is denied at the nodes' addresses, by the error that it gets", "after: the server's log denies the application at the nodes' addresses"),
			),
		},
		{
			Says: "traffic between pods and into the native CIDR bears the pods' addresses as before",
			By: slices.Concat(
				framework.By("off-by-old-key", "after: inside the native CIDR pods are known by their own addresses"),
				framework.By("default-on", "after: inside the native CIDR pods are known by their own addresses"),
			),
		},
		{
			Says: "a day before the symptom, as soon as the new version is chosen, the detector says that it does not read the key that switches masquerading off",
			By:   framework.By("off-by-old-key", "baseline"),
		},
		{
			Says: "the detector names every key that the new version does not read, as a warning where something changes, as a hint where nothing does, and no key that means the same",
			By: slices.Concat(
				framework.By("off-by-old-key", "baseline", "before: config-drift says nothing of cluster-name, enable-ipv4, enable-ipv6, identity-allocation-mode, ipam, kube-proxy-replacement, tunnel"),
				framework.By("default-on", "baseline"), framework.By("translated", "baseline"),
			),
		},
		{
			Says: "the detector says whom the database sees, and by which chain, rule and comment",
			By:   framework.By("off-by-old-key", "detectors", "after: the detector names chain, rule and comment"),
		},
		{
			Says: "the vendor's rule masquerades with the old key",
			By:   framework.By("off-by-old-key", "before: no rule masquerades", "after: the vendor's rule masquerades on every node"),
		},
		{
			Says: "in the incident's own cluster BPF was told to masquerade all the time, and 1.8.1 did not",
			By:   framework.By("default-on", "before: the agents of Cilium 1.8.1 were told to masquerade by BPF", "before: no rule masquerades", "after: the agents of Cilium 1.11.1 were told the same", "after: no rule masquerades"),
		},
		{
			Says: "with iptables a connection from before keeps its address, with BPF it loses it",
			By: slices.Concat(
				framework.By("off-by-old-key", "after: a flow from before the upgrade keeps its address until it starts anew"),
				framework.By("default-on", "after: flows from before the upgrade lose their address with their next packet"),
			),
		},
		{
			Says: "it does not heal by itself",
			Not:  "no run waits for it. Once, with --wait 10m, not one packet got through in ten minutes (2026-11-23)",
		},
		{
			Says: "restarting the agents does not help",
			By:   framework.By("off-by-old-key", "no remedy: restart every agent"),
		},
		{
			Says: "the new keys help, with agents restarted and translated connections forgotten",
			By: slices.Concat(
				framework.By("off-by-old-key", "remedy: the new keys, agents restarted, translated connections forgotten"),
				framework.By("default-on", "remedy: the new keys, agents restarted"),
			),
		},
		{
			Says: "with the configuration translated first the upgrade changes nothing",
			By: slices.Concat(
				framework.By("translated", "no probe is hurt", "after: no rule masquerades", "after: the server has turned nobody away"),
				framework.By("translated-bpf", "no probe is hurt", "after: the agents of Cilium 1.11.1 were told not to masquerade by BPF", "after: the server has turned nobody away"),
			),
		},
		{
			Says: "1.10 refuses to start with both names, and nothing changes",
			By:   framework.By("1.10-both-keys", "verdict is refused", "no probe is hurt", "after: the rules of Cilium 1.8.1 are still there"),
		},
		{
			Says: "1.12 refuses to start without the new name of the native CIDR, and nothing changes",
			By:   framework.By("1.12-old-cidr-key", "verdict is refused", "no probe is hurt", "after: the rules of Cilium 1.11.1 are still there"),
		},
		{
			Says: "Calico's natOutgoing is the same switch",
			Not:  "added-nic asserts it on its lab, which runs Calico: variant kubernetes-internal-ip",
		},
	},
	Diagram: `    db 10.20.29.10      neighbour 10.20.30.200 (native CIDR)
        └──────── tor ────────┘
              ┌────┴────┐        nodes 10.20.28.0/24
            node1     node2      pods in 10.20.30.0/25`,
}
