// Package example is the worked example of CONTRIBUTING.md: a whole incident, as
// small as one can be. It compiles, it is validated, and its steps are listed by
// a test. It is not in the catalogue.
package example

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "half-upgrade",
	Title:  "kube-router is upgraded, and its ClusterRole is not",
	Source: "github.com/cloudnativelabs/kube-router/issues/1555, October 2023",
	Symptom: `An operator sets the image of the DaemonSet to 2.1.0 and nothing else. Some
seconds later no pod can be reached from another node.`,
	Cause: `kube-router 2 lists EndpointSlices, which the ClusterRole of version 1 does not
allow. It waits for its caches, speaks no BGP meanwhile, and ends. The ToR drops
a node's route when the time for a graceful restart is over.`,
	Affected: "kube-router 2, with the manifest of version 1",
	Fixed:    "no version; the manifest of version 2",
	Remedies: []string{"the manifest of version 2", "restarting kube-router does not help"},
	Reproduction: `kube-router and its manifests are the vendor's. The times for a graceful restart
and for the caches are shorter than its defaults, so that a run takes minutes.

This scenario is an example of how one is written: it has not run in a lab.`,
	Diagram: `    outside .10
       │           uplink 10.40.5.0/24
    tor .254       AS 64524
   ┌───┴────┐      nodes  10.40.4.0/24
master   worker    AS 64513
 .11      .12      pods in 10.40.64.0/24 and 10.40.65.0/24`,
}
