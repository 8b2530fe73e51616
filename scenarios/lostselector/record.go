// Package lostselector reproduces the incident in which the label goes by which Calico's nodes find their
// route reflectors.
package lostselector

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:   "lost-selector",
	Title:  "all routes hang on a label of nodes, and an upgrade of Kubernetes removes it",
	Source: "the outage of a large site on 2023-03-14; KEP-2067; Calico 3.28, libcalico-go/lib/selector and confd's BGP templates",
	Symptom: `An upgrade of Kubernetes from 1.23 to 1.24 ends all traffic between nodes' pods, in the
whole cluster and at once. Nodes reach each other, and a restart of Calico changes
nothing. In production it took 314 minutes, because nothing that the upgrade touches
was known to be a part of the network.`,
	Cause: `The nodes had no mesh of BGP sessions, but route reflectors. The BGPPeer that names
them selected nodes with the label node-role.kubernetes.io/master. kubeadm of 1.24
removes that label from control planes. Then the BGPPeer selects no node, and Calico
takes every session out of bird.cfg: with the sessions go all routes to pods of other
nodes. The object is valid, and nothing reports it.`,
	Affected: "every version of Calico whose BGPPeers select nodes by that label",
	Fixed:    "a selector on node-role.kubernetes.io/control-plane, before the upgrade",
	Remedies: []string{
		"the label back on the nodes",
		"a selector on node-role.kubernetes.io/control-plane",
		"restarting calico-node does not help",
	},
	Reproduction: `Calico is the vendor's, whole, with BIRD of Debian, as in added-nic. The control
plane is the route reflector. Of kubeadm's upgrade the lab has the one step that
matters: the label is removed. The sessions to a router outside are left out: the lab
shows the routes between nodes.

A pass does not prove anything about Typha, nor about how long BIRD keeps routes when
calico-node ends in the same moment.`,
	Facts: []framework.Fact{
		{Says: "with a selector on the old label all is well, and the detector names the label that an upgrade removes",
			By: framework.By(affectedVariant, framework.StepBaseline)},
		{Says: "without the label all sessions and all routes to pods of other nodes are gone",
			By: framework.By(affectedVariant, framework.StepSymptom, framework.StepAfter("no-sessions"))},
		{Says: "the detector names the object and the label", By: framework.By(affectedVariant, framework.StepFindings)},
		{Says: "restarting calico-node does not help", By: framework.By(affectedVariant, framework.StepRemedy("restart-calico-node"))},
		{Says: "the label back on the nodes helps", By: framework.By(affectedVariant, framework.StepRemedy("label"))},
		{Says: "a selector on the label of today helps", By: framework.By(affectedVariant, framework.StepRemedy("selector"))},
		{Says: "with a selector on the label of today the same upgrade changes nothing", By: framework.By(fixedVariant, framework.StepObserve)},
	},
	Diagram: `        gw .254               the default route of the nodes, and no more
┌─────────┼─────────┐         nodes 10.72.4.0/24
master    worker1   worker2   AS 64512
.11        .21       .22      pods in 10.72.64.0/20
reflector                     BGPPeer reflectors: peerSelector has(node-role.kubernetes.io/master)`,
}
