// Package ipvsdeadlock reproduces the incident in which kube-proxy in IPVS
// mode stops updating the kernel's table, while it seems to be alive.
package ipvsdeadlock

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "ipvs-deadlock",
	Title:  "kube-proxy stops updating IPVS, ClusterIPs time out",
	Source: "production, kube-proxy in IPVS mode under Calico; kubernetes#71071",
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
runs on a guest with Debian's kernel 6.1, for the machine's own may have no
IPVS. The control plane is Kubernetes 1.34.4, which still serves the v1
Endpoints that kube-proxy of that time reads.

What took a day takes a minute or two, because of the load: 300 TCP connections
through one Service whose 250 endpoints are then taken away, so that the list is
long and a tick takes long; and 60 Services whose endpoints change all the time,
so that a sync is always under way. The endpoints are written as an operator
would write them, for Services without a selector. Sync periods are short.
The load ends before the traffic is judged: what hangs then, hangs for good.

A pass does not prove anything about the rate in production, nor about the
other defects of the graceful termination at the time (kubernetes#72337).`,
	Diagram: `            tor                     AS 64524
   ┌─────────┼───────────┐          nodes 10.30.4.0/24
master     edge       backends      load's endpoints 10.30.132.0/23
         (kernel 6.1)               pods 10.30.64.0/20`,
}
