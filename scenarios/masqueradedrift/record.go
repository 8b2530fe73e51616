// Package masqueradedrift reproduces the incident in which an upgrade of Cilium, with its ConfigMap
// untouched, starts to hide the pods' addresses from a database that grants by address.
package masqueradedrift

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:  "masquerade-drift",
	Title: "an upgrade starts hiding pod addresses",
	Source: "production, Cilium 1.8.1 to 1.11.1 with BGP and routable pods; cilium#12456; pkg/option and " +
		"pkg/datapath/iptables of Cilium 1.8 to 1.12",
	Issue: "https://github.com/cilium/cilium/issues/12456",
	Symptom: `After an upgrade of Cilium with its ConfigMap unchanged, a MySQL server that
grants to the pod range only refuses the application: it sees the address of
the node. Traffic between pods and into the native CIDR is as before. Where
iptables does the masquerading, so are connections from before the upgrade: the
failure shows only when they end.`,
	Cause: `The key that switches masquerading off was renamed, and the old name is
silently ignored:

  version  masquerade                enable-ipv4-masquerade  native-routing-cidr
  1.8      read, default true        ignored                 read
  1.10     deprecated, still read    read, default true      deprecated, read
  1.11     ignored                   read, default true      deprecated, read
  1.12     ignored                   read, default true      ignored

A cluster that had it off under the old name has it on with 1.11: the agent
writes "-s <node's pods> ! -d <native CIDR> ... cilium masquerade non-cluster".
1.10 refuses to start if both names are set; 1.11 refuses both names of the
native CIDR; 1.12 refuses to start without the new one, if masquerading is on.

In the incident's own cluster masquerading was on all the time, by BPF, and a bug
hid it: in 1.8.1 bpf_host.c leaves the call out with BPF NodePort in plain DSR mode
(cilium#12456, fixed in 1.8.2). No key changes its meaning, so the configuration
shows nothing. BPF programs process each packet, so flows from before the upgrade
change their address midway.`,
	Affected: "an upgrade of Cilium from 1.8.1 to 1.11.1 with an unchanged ConfigMap",
	Fixed:    "no version; the configuration translated to the new keys before the upgrade",
	Remedies: []string{
		`the new keys (enable-ipv4-masquerade: "false", enable-bpf-masquerade: "false", ipv4-native-routing-cidr), agents restarted, translated connections forgotten`,
		"restarting the agents does not help",
	},
	Reproduction: `The cluster is kind's: real API server, kubelets and containerd. The databases
are Debian's MariaDB 10.11, the client is go-sql-driver/mysql. Cilium's agent
runs as a slice at each version: the vendor's flags, ConfigMap reading, checks
and iptables rules (images/cilium/rules/rules.go lists it line by line). Pods are
wired by the CNI plugins ptp and host-local. The ToR has static routes to the
pods, in place of BGP.

In default-on the slice attaches BPF as well: from-netdev and to-netdev of the
version's bpf_host.c to the nodes' card. The vendor's code writes the headers
from the ConfigMap, compiles, and sets the card's values; loading, attaching and
telling which addresses are pods' is our code (images/cilium/rules/datapath). Added to
the incident's keys are "partial" kube-proxy replacement and legacy host routing,
because Cilium's programs for pods and sockets are not there. That 1.8.2 masquerades in
the same mode, and 1.8.1 in hybrid mode, is tested without a cluster (lab test of
images/tcbpf).

off-by-old-key has masquerading off by its old name; default-on has it on by BPF, as
the incident's cluster had. In translated and translated-bpf the new name switches it
off before the upgrade. 1.10-both-keys sets both names, and 1.12-old-cidr-key has
masquerading on with the old name of the native CIDR. All but default-on and
translated-bpf masquerade by iptables.

With --images=upstream the slices are built all the same, and only the control
plane's images are the vendor's.

A pass does not prove anything about a whole agent's datapath, nor about
ip-masq-agent, tunnels or IPv6.`,
	Facts: []framework.Fact{
		{Says: "before the upgrade the application connects: the database sees the pods' addresses, which alone it admits",
			By: framework.By(offByOldKey.name, framework.StepBaseline).And(defaultOn.name, framework.StepBaseline)},
		{Says: "after it the application is denied at the node's address, by the client's error and the server's log",
			By: framework.By(offByOldKey.name, framework.StepSymptom, framework.StepAfter("denied")).
				And(defaultOn.name, framework.StepSymptom, framework.StepAfter("denied"))},
		{Says: "traffic between pods and into the native CIDR bears the pods' addresses as before",
			By: framework.By(offByOldKey.name, framework.StepAfter("inside-untouched")).
				And(defaultOn.name, framework.StepAfter("inside-untouched"))},
		{Says: "before the upgrade, as soon as the new version is chosen, the detector reports that it does not read the key " +
			"that switches masquerading off",
			By: framework.By(offByOldKey.name, framework.StepBaseline)},
		{Says: "the detector names every key that the new version does not read, as a warning where something changes, as a " +
			"hint where nothing does, and no key that means the same",
			By: framework.By(offByOldKey.name, framework.StepBaseline).And(defaultOn.name, framework.StepBaseline).
				And(translated.name, framework.StepBaseline)},
		{Says: "the detector says which address the database sees, and by which chain, rule and comment",
			By: framework.By(offByOldKey.name, framework.StepFindings)},
		{Says: "the vendor's rule masquerades with the old key",
			By: framework.By(offByOldKey.name, framework.StepBefore("rules"), framework.StepFindings)},
		{Says: "in the incident's own cluster BPF was configured to masquerade all the time, and 1.8.1 did not",
			By: framework.By(defaultOn.name, framework.StepBefore("bpf-masquerade"), framework.StepBefore("rules"),
				framework.StepAfter("bpf-masquerade"), framework.StepAfter("rules"))},
		{Says: "with iptables a connection from before keeps its address, with BPF it loses it",
			By: framework.By(offByOldKey.name, framework.StepAfter("old-flows")).And(defaultOn.name, framework.StepAfter("old-flows"))},
		{Says: "it does not recover by itself",
			Not: "no run waits for it. In one run with --wait 10m, every packet was lost for ten minutes (2026-11-23)"},
		{Says: "restarting the agents does not help", By: framework.By(offByOldKey.name, framework.StepRemedy("restart-agents"))},
		{Says: "the new keys help, with agents restarted and translated connections forgotten",
			By: framework.By(offByOldKey.name, framework.StepRemedy("new-keys")).And(defaultOn.name, framework.StepRemedy("new-keys"))},
		{Says: "with the configuration translated first the upgrade changes nothing",
			By: framework.By(translated.name, framework.StepObserve, framework.StepAfter("rules")).
				And(translatedBPF.name, framework.StepObserve, framework.StepAfter("bpf-masquerade"))},
		{Says: "1.10 refuses to start with both names, and nothing changes",
			By: framework.By(bothKeys.name, framework.StepVerdict, framework.StepObserve, framework.StepAfter("rules"))},
		{Says: "1.12 refuses to start without the new name of the native CIDR, and nothing changes",
			By: framework.By(oldCIDRKey.name, framework.StepVerdict, framework.StepObserve, framework.StepAfter("rules"))},
		{Says: "Calico's natOutgoing is the same switch",
			Not: "added-nic asserts it on its lab, which runs Calico: variant kubernetes-internal-ip"},
	},
	Diagram: `db 10.20.29.10       neighbour 10.20.30.200
   │                     │
   │ outside             │ inside 10.20.30.128/25: the half of the
   │ 10.20.29.0/24       │ native CIDR that the pods do not have
   └──────── tor ────────┘
              │           nodes 10.20.28.0/24
        ┌─────┴─────┐
      node1       node2   pods in 10.20.30.0/25, a /27 each`,
}
