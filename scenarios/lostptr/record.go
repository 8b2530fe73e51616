// Package lostptr reproduces the incident in which pods lose their reverse names with an
// upgrade of CoreDNS.
package lostptr

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "lost-ptr",
	Title:  "an upgrade of CoreDNS takes the reverse names of pods",
	Source: "coredns#7177; serviceRecordForIP in plugin/kubernetes/reverse.go of 1.11.3, 1.11.4, 1.12.0 and 1.12.1",
	Issue:  "https://github.com/coredns/coredns/issues/7177",
	Symptom: `After an upgrade of CoreDNS, or of kubeadm to Kubernetes 1.33, which brings CoreDNS
1.12.0, programs that ask for the name of a peer's address are refused: Kerberos and
LDAP clients, Hadoop, mail servers. Names resolve as before, and pods, Services and
CoreDNS are well.`,
	Cause: `1.11.4 answers a PTR question only for endpoints whose EndpointSlice has a hostname,
and NXDOMAIN for all others. The hostname is there only if the pod template sets it
together with a subdomain. 1.11.3 makes a name of the address for the others, and
1.12.1 does so again.`,
	Affected: "CoreDNS 1.11.4 and 1.12.0",
	Fixed:    "1.12.1 (1.11.3 does not have it yet)",
	Remedies: []string{
		"CoreDNS 1.12.1",
		"hostname and subdomain in the pod template",
		"restarting CoreDNS does not help",
	},
	Reproduction: `CoreDNS is kubeadm's Deployment of two pods, and is taken from 1.11.3 to another
version as an upgrade does. A headless Service has one pod behind it. The client looks
up the name of the pod's address, the address of that name, and connects, as Kerberos
with rdns does. Its reverse zones do not fall through to another server, because
there is none: where there is one, it is asked, and knows no name either.

A pass does not prove anything about IPv6, nor about endpoint_pod_names.`,
	Facts: []framework.Fact{
		{Says: "before the upgrade the name of the pod's address is found",
			By: framework.By(affectedVariant, framework.StepBaseline).And(firstVariant, framework.StepBaseline)},
		{Says: "with 1.11.4 and 1.12.0 it is not, and names and pods are reached as before",
			By: framework.By(affectedVariant, framework.StepSymptom, framework.StepObserve).
				And(firstVariant, framework.StepSymptom, framework.StepObserve)},
		{Says: "the detector names the version and the headless Service",
			By: framework.By(affectedVariant, framework.StepFindings).And(firstVariant, framework.StepFindings)},
		{Says: "new pods of CoreDNS do not help",
			By: framework.By(affectedVariant, framework.StepRemedy("restart")).
				And(firstVariant, framework.StepRemedy("restart"))},
		{Says: "1.12.1 brings the name back",
			By: framework.By(affectedVariant, framework.StepRemedy("coredns-1-12-1")).
				And(firstVariant, framework.StepRemedy("coredns-1-12-1"))},
		{Says: "with 1.12.1 the upgrade loses no name", By: framework.By("coredns-"+fixed, framework.StepObserve)},
		{Says: "a pod with a hostname keeps its name with 1.12.0", By: framework.By(namedVariant, framework.StepObserve)},
	},
	Diagram: `        tor .254                     static routes to the pods
          │
     ┌────┴─────┐                    network "nodes"  10.70.4.0/24
  master      worker
   .11          .12
  client      server                 behind the headless Service directory`,
}
