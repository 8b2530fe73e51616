package upgrade

import (
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/calico"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
)

// calicoASN is the AS number that Calico has by default.
const calicoASN = 64512

// calicoUpgrade upgrades Calico by the vendor's manifest of the version. The nodes have
// Calico's mesh, and each also peers with the ToR.
func calicoUpgrade() Upgrade {
	s := small{component: "calico", number: 61}
	t := s.topology()
	t.Clusters[0].ASN = calicoASN
	t.Routers[0].Peers = []topology.Peers{{Network: "nodes", ASN: calicoASN, GracefulRestart: true}}
	apply := func(version string) framework.Action {
		return calico.Calico{Version: version, PodCIDR: s.podCIDR(), Method: calico.InternalIP, Poll: calico.DefaultPoll, OnDelete: true}.Apply
	}
	return Upgrade{
		Component: "calico", Form: framework.Whole, Topology: t, Besides: withKubeProxy,
		Images: func(version string) []string {
			return append(calico.Images(version), kubeadm.KubeProxyImage, workload.ProbeImage)
		},
		Install: func(version string) framework.Action {
			return framework.InOrder(
				// A lab that is reused may have agents: with OnDelete they are not replaced.
				workload.StopProbes, labaccess.OnCluster(calico.Agent.Delete),
				apply(version), calico.Peered(tor, topology.TorASN),
				kubeadm.ApplyKubeProxy, calico.PodsCanStart, calico.Agent.Everywhere(2*time.Minute),
				installed(services{kubeProxy: true, sessions: true}),
			)
		},
		Ends: s.ends(), Paths: s.paths(probe.DefaultInterval, probe.DefaultTCPInterval, true),
		Release: apply,
		Nodes:   allNodes,
		Pods:    []workload.Pods{calico.Agent.Pods},
		Roll:    restart(calico.Agent),
	}.withAgents(calico.Agent.Pods, func(version string) string { return calico.Images(version)[0] }, sessionsAndPods)
}
