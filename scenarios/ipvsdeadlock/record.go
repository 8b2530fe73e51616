// Package ipvsdeadlock reproduces the incident in which kube-proxy in IPVS
// mode stops updating the kernel's table, while it seems to be alive.
package ipvsdeadlock

import "github.com/relapse-dev/relapse/framework"

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
its own. So each goroutine can discard the reply that the other waits for, and
both wait forever.

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
runs on guests with Debian's kernel 6.1, or that of User Mode Linux, because the
machine's own may have no IPVS. The control plane is Kubernetes 1.34.4, which
still serves the v1 Endpoints that kube-proxy of that time reads.

All variants get the same load at the same moment, each on a guest of its own.
1.13.0 shows what a restart and 1.13.2 do, and 1.13.1 what iptables mode does. With
less than 8 GiB of memory there is one guest, which the variants use in turn.

What took a day takes one to four minutes, because of the load: 300 TCP connections
from each guest through one Service whose 250 endpoints are then taken away, so
that the list is long and a tick takes long; and 60 Services whose endpoints
change all the time, so that a sync is always in progress. The endpoints are
written as an operator would write them, for Services without a selector. Sync
periods are short.
The load ends before the traffic is judged: a kube-proxy that hangs then will not
recover.

A pass does not prove anything about the rate in production, nor about the
other defects of the graceful termination at the time (kubernetes#72337).`,
	Facts: []framework.Fact{
		{Says: "before the symptom no packet is lost, and the detectors have no findings",
			By: framework.By(hangs, framework.StepBaseline)},
		{Says: "kube-proxy runs in mode ipvs and did not fall back to another",
			By: framework.By(hangs, framework.StepBefore("proxy-mode")).And(works, framework.StepBefore("proxy-mode"))},
		{Says: "a ClusterIP stops answering, and the pod behind it answers",
			By: framework.By(hangs, framework.StepSymptom, framework.StepObserve)},
		{Says: "no further sync finishes: two goroutines wait in nl.(*NetlinkSocket).Receive under ipvs.execute",
			By: framework.By(hangs, framework.StepFindings)},
		{Says: "healthz answers 503, and its time of the last sync does not change", By: framework.By(hangs, framework.StepFindings)},
		{Says: "a Service that is created later gets no virtual server", By: framework.By(hangs, framework.StepFindings)},
		{Says: "an endpoint that is replaced later is not replaced in the table",
			By: framework.By(hangs, framework.StepSymptom, framework.StepFindings)},
		{Says: "the table has virtual servers without a real server", By: framework.By(hangs, framework.StepFindings)},
		{Says: `the log repeats "Trying to delete rs" each minute`,
			By: framework.By(hangs, framework.StepFindings),
			Not: "here the opposite: the goroutine that writes the line is one of the two, and the log ends with its last tick; " +
				"in the report it went on"},
		{Says: "it does not recover by itself",
			Not: "no run waits for it. In one run each of 1.13.0 and 1.13.1 with --wait 10m, every packet was lost for ten minutes (2026-11-23)"},
		{Says: "restarting kube-proxy helps until the next time", By: framework.By(hangs, framework.StepRemedy("restart"))},
		{Says: "1.13.2 helps", By: framework.By(hangs, framework.StepRemedy("fixed-version"))},
		{Says: "iptables mode helps", By: framework.By(hangsToo, framework.StepRemedy("iptables-mode"))},
		{Says: "1.13.2 survives the same load for at least as long, and its table follows the Services and endpoints that change after it",
			By: framework.By(works, framework.StepObserve)},
		{Says: "1.13.0 in iptables mode survives it as well", By: framework.By(iptables, framework.StepObserve)},
		{Says: "1.13.1, without the inverted condition of remove(), hangs the same way: the deadlock is the cause",
			By: framework.By(hangsToo, framework.StepSymptom, framework.StepFindings)},
		{Says: "1.11.5, 1.11.6 and 1.12.2 to 1.12.4 hang the same way",
			Not: "no variant runs them. 1.12.3, run once with --with, hangs as well (2026-11-22)"},
	},
	Diagram: `                          tor .254                         AS 64524
   ┌─────────┬─────────┬─────┴───┬─────────┬─────────┐     nodes 10.30.4.0/24
master .11 edge1 .21 edge2 .22 edge3 .23 edge4 .24 backends .31
(control  (guests, kernel 6.1)                     load's endpoints 10.30.132.0/23
 plane)                                                    pods 10.30.64.0/20`,
}
