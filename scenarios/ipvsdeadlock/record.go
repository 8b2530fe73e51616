// Package ipvsdeadlock reproduces the incident in which kube-proxy in IPVS
// mode stops updating the kernel's table, while it seems to be alive.
package ipvsdeadlock

import (
	"slices"

	"github.com/relapse-dev/relapse/framework"
)

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "ipvs-deadlock",
	Title:  "kube-proxy stops updating IPVS, ClusterIPs time out",
	Source: "production, kube-proxy in IPVS mode under Calico; kubernetes#71071",
	Issue:  "https://github.com/kubernetes/kubernetes/issues/71071",
	Symptom: `After a day, some ClusterIPs time out (nmap: filtered). All pod IPs answer.
ipvsadm -Ln shows virtual servers with no real server, or with those of pods
that are long gone. kube-proxy is alive; its log only repeats "Trying to delete
rs" each minute.`,
	Cause: `kube-proxy has one libipvs handle, which has one netlink socket and no lock.
Two goroutines use it: syncProxyRules, and the manager of the graceful
termination, which dumps the real servers of each endpoint on its list every
60 s. libnetwork's execute throws away replies whose sequence number is not
its own. So each goroutine can swallow the reply that the other waits for, and
both wait for ever.

1.13.2 puts a mutex around the netlink calls. 1.13.0 also has an inverted
condition in the list's remove(), which 1.13.1 corrects: a re-added real server
may be deleted once a minute.`,
	Affected: "kube-proxy 1.11.5-6, 1.12.2-4, 1.13.0-1, in IPVS mode",
	Fixed:    "1.11.7, 1.12.5, 1.13.2",
	Remedies: []string{
		"restart kube-proxy: helps until the next time",
		"kube-proxy 1.13.2",
		"--proxy-mode=iptables",
	},
	Reproduction: `kube-proxy is the vendor's own program, built from k8s.io/kubernetes at the
stated version with libnetwork and netlink as it pins them, in a DaemonSet. It
runs on guests with Debian's kernel 6.1, or that of User Mode Linux, for the
machine's own may have no IPVS. The control plane is Kubernetes 1.34.4, which
still serves the v1 Endpoints that kube-proxy of that time reads.

All variants meet the same load at the same moment, each on a guest of its own.
1.13.0 shows what a restart and 1.13.2 do, and 1.13.1 what iptables mode does. With
less than 8 GiB of memory there is one guest, and they have it one after the
other.

What took a day takes a minute or two, because of the load: 300 TCP connections
from each guest through one Service whose 250 endpoints are then taken away, so
that the list is long and a tick takes long; and 60 Services whose endpoints
change all the time, so that a sync is always under way. The endpoints are
written as an operator would write them, for Services without a selector. Sync
periods are short.
The load ends before the traffic is judged: what hangs then, hangs for good.

A pass does not prove anything about the rate in production, nor about the
other defects of the graceful termination at the time (kubernetes#72337).`,
	Facts: []framework.Fact{
		{
			Says: "a day before the symptom nothing is to be seen, and the detectors are quiet",
			By:   framework.By("kube-proxy-1.13.0", "baseline"),
		},
		{
			Says: "kube-proxy runs in mode ipvs and did not fall back to another",
			By: slices.Concat(
				framework.By("kube-proxy-1.13.0", "before: kube-proxy says that it runs in mode ipvs"),
				framework.By("kube-proxy-1.13.2", "before: kube-proxy says that it runs in mode ipvs"),
			),
		},
		{
			Says: "a ClusterIP does not answer any more, and the pod behind it does",
			By:   framework.By("kube-proxy-1.13.0", "symptom", "nothing else is hurt"),
		},
		{
			Says: "no sync is finished any more",
			By:   framework.By("kube-proxy-1.13.0", "after: no sync was finished since the load ended"),
		},
		{
			Says: "healthz says 503, and the time of the last sync stands still",
			By:   framework.By("kube-proxy-1.13.0", "after: healthz says 503 and when the last sync was, before the load ended"),
		},
		{
			Says: "two goroutines wait in nl.(*NetlinkSocket).Receive under ipvs.execute",
			By:   framework.By("kube-proxy-1.13.0", "after: two goroutines wait for IPVS in nl.(*NetlinkSocket).Receive under ipvs.execute"),
		},
		{
			Says: "a Service that comes later gets no virtual server",
			By:   framework.By("kube-proxy-1.13.0", "after: a Service that was created after the load has no virtual server", "detectors"),
		},
		{
			Says: "an endpoint that is replaced later stays as it was",
			By:   framework.By("kube-proxy-1.13.0", "after: the virtual server of web has the pod that is gone, and not the new one", "detectors"),
		},
		{
			Says: "virtual servers without a real server stand in the table",
			By:   framework.By("kube-proxy-1.13.0", "after: the virtual server of a Service that got its first pod after the load has no real server", "detectors"),
		},
		{
			Says: `the log repeats "Trying to delete rs" each minute`,
			By:   framework.By("kube-proxy-1.13.0", "after: two goroutines wait for IPVS in nl.(*NetlinkSocket).Receive under ipvs.execute"),
			Not:  "here the opposite: the goroutine that writes the line is one of the two, and the log ends with its last tick; in the report it went on",
		},
		{
			Says: "it does not heal by itself",
			Not:  "no run waits for it. Once, with --wait 10m, neither 1.13.0 nor 1.13.1 let one packet through in ten minutes (2026-11-23)",
		},
		{
			Says: "restarting kube-proxy helps until the next time",
			By:   framework.By("kube-proxy-1.13.0", "remedy: restart kube-proxy, which lasts until the load comes back"),
		},
		{
			Says: "1.13.2 helps",
			By:   framework.By("kube-proxy-1.13.0", "remedy: kube-proxy 1.13.2"),
		},
		{
			Says: "iptables mode helps",
			By:   framework.By("kube-proxy-1.13.1", "remedy: mode iptables"),
		},
		{
			Says: "1.13.2 stands the same load for at least as long",
			By: framework.By("kube-proxy-1.13.2", "no probe is hurt", "after: syncs are finished since the load ended", "after: a Service that was created after the load has a virtual server",
				"after: the virtual server of a Service that got its first pod after the load has that pod",
				"after: the virtual server of web has the new pod and no other", "after: the virtual servers of the churned Services follow"),
		},
		{
			Says: "1.13.0 in iptables mode stands it as well",
			By:   framework.By("kube-proxy-1.13.0-iptables", "no probe is hurt", "after: syncs are finished since the load ended"),
		},
		{
			Says: "1.13.1, without the inverted condition of remove(), hangs the same way: it is the deadlock that hurts",
			By: framework.By("kube-proxy-1.13.1", "symptom", "detectors", "after: no sync was finished since the load ended",
				"after: two goroutines wait for IPVS in nl.(*NetlinkSocket).Receive under ipvs.execute"),
		},
		{
			Says: "1.11.5, 1.11.6 and 1.12.2 to 1.12.4 hang the same way",
			Not:  "no variant runs them. 1.12.3, run once with --with, hangs as well (2026-11-22)",
		},
	},
	Diagram: `                    tor                           AS 64524
   ┌───────┬────────┼───────┬───────┬───────┐     nodes 10.30.4.0/24
master   edge1   edge2    edge3   edge4  backends load's endpoints 10.30.132.0/23
         (kernel 6.1)                             pods 10.30.64.0/20`,
}
