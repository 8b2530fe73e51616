// Package lostpermission reproduces the incident in which an upgrade of Cilium takes a
// permission from agents of the version before, which announce nothing once they restart.
package lostpermission

import "github.com/relapse-dev/relapse/framework"

// Record is the incident as it is documented.
var Record = framework.Incident{
	Name:  "lost-permission",
	Title: "an upgrade takes a permission from Cilium agents that still run",
	Source: "cilium#45802; Cilium's release notes of 1.19.4 (#45829); templates/cilium-agent/clusterrole.yaml of the " +
		"charts of 1.18.4, 1.19.3 and 1.19.5; pkg/bgpv1/agent/controller.go and pkg/k8s/resource of 1.18.4",
	Issue: "https://github.com/cilium/cilium/issues/45802",
	Symptom: `A cluster is upgraded from Cilium 1.18 to 1.19. Its DaemonSet has the strategy OnDelete:
the nodes are to get their new agents with the next maintenance. Until then an agent of
1.18 that restarts, as after a crash or a reboot of its node, has no BGP session any
more. The routers lose its pods, which nobody outside reaches, and which reach nobody.
The agent's status is OK.`,
	Cause: `The chart of 1.19 has no rule for ciliumbgppeeringpolicies in the agents' ClusterRole,
because agents of 1.19 do not ask for them. Agents of 1.18 do, whether there are any or
not: their BGP controller waits for the first list of these policies before it looks
at CiliumBGPNodeConfigs, and the API server answers that list with Forbidden. An agent
that runs has its list. When its watch ends, after 5 to 10 minutes, it is refused as
well, asks again after pauses of up to a minute, and keeps the list and its sessions.
A rolling upgrade has the same gap on nodes that it has not reached.`,
	Affected: "agents of Cilium 1.18 under the charts of 1.19.0 to 1.19.3",
	Fixed:    "the chart of 1.19.4, which has the rule again",
	Remedies: []string{
		"the rule put back into the ClusterRole",
		"the node's agent taken to 1.19",
		"the chart of 1.19.4",
		"restarting the agent does not help",
		"taking the DaemonSet alone back to 1.18 does not help",
	},
	Reproduction: `Cilium runs whole, installed by the vendor's charts with the objects that these render,
RBAC among them: native routing, no masquerade, BGP control plane, no kube-proxy. The
release is upgraded from 1.18.4, and kubelet then starts the agent's pod on worker1
again. The routers keep routes for 60 s after a session has ended (graceful restart;
the vendor's default is 120 s where it is switched on), so that the restart of an agent
that works loses no packet. Without graceful restart the loss begins with the restart.
Watches end because the kernel closes their connections (ss --kill). 1.19.5 runs in
place of 1.19.4. Envoy and Hubble are not built.

A pass does not prove that nothing but BGP suffers, nor that an agent that runs keeps
its sessions for days: it is watched for a minute.`,
	Facts: []framework.Fact{
		{Says: "the upgrade of the release alone harms no traffic: agents of 1.18.4 run on, with their sessions",
			By: framework.By(affectedVariant, framework.StepPrecursor("release-upgraded")).
				And(fixedVariant, framework.StepPrecursor("release-upgraded"))},
		{Says: "an agent that runs keeps its sessions when its watches end, although it is refused its next list",
			By: framework.By(affectedVariant, framework.StepPrecursor("watches-end"))},
		{Says: "the detector finds, before anything breaks, which permission the running agents lack",
			By: framework.By(affectedVariant, framework.StepPrecursor("release-upgraded"))},
		{Says: "an agent of 1.18.4 that restarts under the chart of 1.19.3 has no session, and its node's pods are reached " +
			"by nobody outside, nor reach anybody; pods of other nodes are well, and so are pods of that node inside the cluster",
			By: framework.By(affectedVariant, framework.StepSymptom, framework.StepAfter("no-session"), framework.StepObserve)},
		{Says: "cilium-dbg status --brief says OK all the while", By: framework.By(affectedVariant, framework.StepAfter("says-ok"))},
		{Says: "its log says that it failed to list ciliumbgppeeringpolicies, which is forbidden",
			By: framework.By(affectedVariant, framework.StepAfter("log"))},
		{Says: "another restart does not help, nor does the DaemonSet of 1.18.4 with the rest of 1.19.3",
			By: framework.By(affectedVariant, framework.StepRemedy("restart-agent"), framework.StepRemedy("image-back"))},
		{Says: "the rule, put back, brings the sessions back without a restart, as does the chart of 1.19.5",
			By: framework.By(affectedVariant, framework.StepRemedy("rule-back"), framework.StepRemedy("chart-1-19-5"))},
		{Says: "an agent of 1.19.3 announces its node's pods", By: framework.By(affectedVariant, framework.StepRemedy("agent-1-19-3"))},
		{Says: "under the chart of 1.19.5 the same restart loses nothing",
			By: framework.By(fixedVariant, framework.StepAfter("sessions-up"), framework.StepObserve)},
		{Says: "under the chart of 1.19.5 the agents lack no permission", By: framework.By(fixedVariant, framework.StepAfter("permitted"))},
	},
	Diagram: `            outside 10.68.5.10
                 │
     ┌───────────┴───────────┐         network "uplink" 10.68.5.0/24
 .251 tor1               tor2 .252     AS 64524: GoBGP
     └──────┬────────┬───────┘         network "nodes"  10.68.4.0/24
   ┌────────┼────────┘
master   worker1   worker2             AS 64513
 .11       .21       .22               pods 10.68.64.0/20`,
}
