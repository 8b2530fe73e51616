// Package unpinnedimage reproduces the incident in which a harmless change
// restarts a DaemonSet, and its pods come back as another version.
package unpinnedimage

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:  "unpinned-image",
	Title: "a restart pulls a different kube-router",
	Source: "production, 2020-06-10, kube-router v0.4.0 to v1.0.0-rc5; again in October 2023, v1.6.0 to v2.0.0: " +
		"github.com/cloudnativelabs/kube-router/issues/1555",
	Issue: "https://github.com/cloudnativelabs/kube-router/issues/1555",
	Symptom: `A DaemonSet asks for cloudnativelabs/kube-router, without tag. An operator
changes --enable-ibgp=false to true, and the pods restart. From then on pods
cannot reach pods on other nodes. Reverting the argument does not help.`,
	Cause: `An image without a tag means latest, and latest is what the vendor published
last. With imagePullPolicy Always each new pod asks the registry again: the
restart was an unintended upgrade. The new version needs more than the old one.
In 2020 that was a filter table without the old version's rules. In 2023 it was
RBAC: v2 lists EndpointSlices, which the ClusterRole of v1's manifest does not
allow, so it waits for its caches, speaks no BGP meanwhile, and ends with "failed
to synchronize cache". Each node's routes are dropped some time after its pod is
replaced: when the time for a graceful restart is over. The argument is not the
cause, and a restart to revert it pulls the same image.`,
	Affected: "any workload whose image has no tag, latest, or a tag that is moved; shown with kube-router 1.5.1 and 2.1.0",
	Fixed:    "no version; an image named by digest",
	Remedies: []string{
		"pin the old version by digest",
		"complete the upgrade: the new version's RBAC and manifest, pinned by digest",
		"reverting the argument does not help",
		"imagePullPolicy IfNotPresent only moves the upgrade to the next new node",
	},
	Reproduction: `Both kube-routers are the vendor's whole programs, built from its modules
over Debian (the vendor builds over Alpine), and the manifests are its
kubeadm-kuberouter.yaml of v1.5.1 and v2.1.0. Added to them: the address of
the API server, because the lab has no service proxy; the ToR as a peer; and two
shorter times, so that a run takes minutes: bgp-graceful-restart-time 18s (by
default 90s), cache-sync-timeout 12s (by default 1m). The nodes peer with the ToR and,
as in the incident, not with each other until the argument is changed. The ToR
helps peers to restart gracefully, as the vendor's manifest asks it to: so the
restart of a kube-router that comes back costs no packet, and losses are caused by
the other version. Pods reach the outside throughout, because kube-router
translates their addresses to the node's.

In untagged the DaemonSet names no tag and pulls Always. pinned-by-digest names a
digest, and untagged-if-not-present pulls IfNotPresent.

A pass does not prove that another pair of versions would fail the same way,
or at all.

The versions of 2020, v0.4.0 and v1.0.0-rc5, do not run: neither is published
as a Go module.`,
	Facts: []framework.Fact{
		{Says: "before anything breaks, the DaemonSet without a tag is reported",
			By: framework.By(untaggedVariant, framework.StepBaseline)},
		{Says: "latest is moved, and nothing happens to what runs",
			By: framework.By(untaggedVariant, framework.StepPrecursor("latest-moved")).And(ifNotPresent, framework.StepPrecursor("latest-moved"))},
		{Says: "a changed argument restarts the pods, and each node pulls a new version, although no upgrade was requested",
			By: framework.By(untaggedVariant, framework.StepAfter("new-version-runs"))},
		{Says: "the detector reports another image under an image field that did not change",
			By: framework.By(untaggedVariant, framework.StepFindings)},
		{Says: "pods cannot be reached from other nodes and from outside", By: framework.By(untaggedVariant, framework.StepSymptom)},
		{Says: "2.1.0 ends because its ClusterRole lacks permissions, with the messages of the report",
			By: framework.By(untaggedVariant, framework.StepAfter("rbac-missing"))},
		{Says: "the node's BGP session is down, and its routes are withdrawn",
			By: framework.By(untaggedVariant, framework.StepAfter("sessions-down"), framework.StepAfter("ranges-lost"))},
		{Says: "the old version works on the other nodes while one ends again and again",
			By: framework.By(ifNotPresent, framework.StepPrecursor("new-node"))},
		{Says: "it does not recover by itself",
			Not: "no run waits for it. In one run with --wait 10m, every packet was lost for ten minutes (2026-11-23)"},
		{Says: "reverting the argument does not help", By: framework.By(untaggedVariant, framework.StepRemedy("argument-reverted"))},
		{Says: "pinning the old version by digest helps", By: framework.By(untaggedVariant, framework.StepRemedy("pin-old-version"))},
		{Says: "completing the upgrade helps: the new version's RBAC and manifest",
			By: framework.By(untaggedVariant, framework.StepRemedy("complete-upgrade"))},
		{Says: "with the image pinned by digest the same restart changes nothing",
			By: framework.By(pinnedVariant, framework.StepPrecursor("latest-moved"), framework.StepObserve, framework.StepAfter("old-version-runs"),
				framework.StepAfter("sessions-up"))},
		{Says: "imagePullPolicy IfNotPresent only moves the upgrade to the next new node",
			By: framework.By(ifNotPresent, framework.StepPrecursor("new-node"), framework.StepAfter("old-version-runs"))},
	},
	Diagram: `       outside 10.20.5.10
          │                   uplink 10.20.5.0/24
       tor .254               AS 64524
┌─────────┼─────────┐         nodes 10.20.4.0/24
master    worker1   worker2   AS 64513
.11        .21       .22      pods in 10.20.64.0/20`,
}
