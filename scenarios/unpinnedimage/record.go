// Package unpinnedimage reproduces the incident in which a harmless change
// restarts a DaemonSet, and its pods come back as another version.
package unpinnedimage

import (
	"slices"

	"github.com/relapse-dev/relapse/framework"
)

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "unpinned-image",
	Title:  "a restart pulls a different kube-router",
	Source: "production, 2020-06-10, kube-router v0.4.0 to v1.0.0-rc5; again in October 2023, v1.6.0 to v2.0.0: github.com/cloudnativelabs/kube-router/issues/1555",
	Issue:  "https://github.com/cloudnativelabs/kube-router/issues/1555",
	Symptom: `A DaemonSet asks for cloudnativelabs/kube-router, without tag. An operator
changes --enable-ibgp=false to true, and the pods restart. From then on pods
cannot reach pods on other nodes. Taking the argument back heals nothing.`,
	Cause: `An image without tag stands for latest, and latest is whatever the vendor
published last. With imagePullPolicy Always each new pod asks the registry
again: the restart was an upgrade that nobody asked for. The version that came
needs more than the one that went. In 2020 that was a filter table without the
old version's rules. In 2023 it was RBAC: v2 lists EndpointSlices, which the
ClusterRole of v1's manifest does not allow, so it waits for its caches in
vain, speaks no BGP meanwhile, and ends with "failed to synchronize cache".
Each node's routes go some time after its pod is replaced: when the time for a
graceful restart is over. The argument had nothing to do with it, and a restart
to take it back pulls the same image.`,
	Affected: "any workload whose image has no tag, latest, or a tag that is moved; shown with kube-router 1.5.1 to 2.1.0",
	Fixed:    "not a matter of version: an image named by digest",
	Remedies: []string{
		"pin the old version by digest",
		"complete the upgrade: the new version's RBAC and manifest, pinned by digest",
		"taking the argument back does not help",
		"imagePullPolicy IfNotPresent only moves the upgrade to the next new node",
	},
	Reproduction: `Both kube-routers are the vendor's whole programs, built from its modules
over Debian (the vendor builds over Alpine), and the manifests are its
kubeadm-kuberouter.yaml of v1.5.1 and v2.1.0. Added to them: the address of
the API server, for the lab has no service proxy; the ToR as a peer; and two
shorter times, so that a run takes minutes: bgp-graceful-restart-time 18s (by
default 90s), cache-sync-timeout 12s (by default 1m). The nodes peer with the ToR and,
as in the incident, not with each other until the argument is changed. The ToR
helps peers to restart gracefully, as the vendor's manifest asks it to: so the
restart of a kube-router that comes back costs no packet, and what is lost is
the other version's doing. Pods reach the outside throughout, for kube-router
translates their addresses to the node's.

A pass does not prove that another pair of versions would fail the same way,
or at all.

The incident of 2020 itself, v0.4.0 to v1.0.0-rc5, is a variant that runs only
with --images=upstream, for neither version is published as a Go module. Its
script follows from the sources of both versions. It has not run yet: where it
was written no registry can be reached.`,
	Facts: []framework.Fact{
		{
			Says: "a day before the symptom, before anything breaks, the DaemonSet without a tag is found",
			By:   framework.By("untagged", "baseline"),
		},
		{
			Says: "latest is moved, and nothing happens to what runs",
			By: slices.Concat(
				framework.By("untagged", "lesser form: latest becomes 2.1.0, and nothing happens"),
				framework.By("untagged-if-not-present", "lesser form: latest becomes 2.1.0, and nothing happens"),
			),
		},
		{
			Says: "a changed argument restarts the pods, and each node pulls the new version that nobody asked for",
			By:   framework.By("untagged", "after: every node runs 2.1.0", "after: every node has pulled 2.1.0, and asked for no version"),
		},
		{
			Says: "the detector tells of another image under an image field that did not change",
			By:   framework.By("untagged", "detectors"),
		},
		{
			Says: "pods cannot be reached from other nodes and from outside",
			By:   framework.By("untagged", "symptom"),
		},
		{
			Says: "2.1.0 ends for want of RBAC, by the words of the report",
			By:   framework.By("untagged", "after: kube-router ends for want of RBAC"),
		},
		{
			Says: "the node's BGP session is down, and its routes are withdrawn",
			By:   framework.By("untagged", "after: the ToR has no session with any node", "after: the ToR has lost every pod range"),
		},
		{
			Says: "the old version works on the other nodes while one ends again and again",
			By:   framework.By("untagged-if-not-present", "lesser form: a new node joins, and gets 2.1.0"),
		},
		{
			Says: "it does not heal by itself",
			Not:  "no run waits for it. Once, with --wait 10m, not one packet got through in ten minutes (2026-11-23)",
		},
		{
			Says: "taking the argument back heals nothing",
			By:   framework.By("untagged", "no remedy: take the argument back"),
		},
		{
			Says: "pinning the old version by digest heals",
			By:   framework.By("untagged", "remedy: pin 1.5.1 by digest"),
		},
		{
			Says: "completing the upgrade heals: the new version's RBAC and manifest",
			By:   framework.By("untagged", "remedy: complete the upgrade to 2.1.0"),
		},
		{
			Says: "with the image pinned by digest the same restart changes nothing",
			By:   framework.By("pinned-by-digest", "lesser form: latest becomes 2.1.0, and nothing happens", "no probe is hurt", "after: every node runs 1.5.1", "after: every node has asked for that digest, and for nothing else", "after: the ToR has a session with every node"),
		},
		{
			Says: "imagePullPolicy IfNotPresent only moves the upgrade to the next new node",
			By:   framework.By("untagged-if-not-present", "lesser form: a new node joins, and gets 2.1.0", "after: only worker2 has pulled 2.1.0"),
		},
		{
			Says: "v1.0.0-rc5 breaks on the filter table that v0.4.0 has left",
			By:   framework.By("kube-router-v0.4.0-to-v1.0.0-rc5", "symptom"),
			Not:  "neither version is a Go module: that variant runs only with --images=upstream, and has not run yet",
		},
	},
	Diagram: `        outside
           │             uplink 10.20.5.0/24
          tor            AS 64524
    ┌──────┼───────┐     nodes  10.20.4.0/24
 master worker1 worker2  AS 64513, pods 10.20.64.0/20`,
}
