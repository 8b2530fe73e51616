package upgrade

import (
	"context"
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
	apply := func(ctx context.Context, r *framework.Run, version string) error {
		c := calico.Calico{Version: version, PodCIDR: s.podCIDR(), Method: calico.InternalIP, Poll: calico.DefaultPoll, OnDelete: true}
		return c.Apply(ctx, labaccess.Lab(r))
	}
	return Upgrade{
		Component: "calico", Form: framework.Whole, Topology: t, Besides: withKubeProxy,
		Images: func(version string) []string {
			return append(calico.Images(version), kubeadm.KubeProxyImage, workload.ProbeImage)
		},
		Install: func(ctx context.Context, r *framework.Run, version string) error {
			if err := workload.StopProbes(ctx, labaccess.Cluster(r)); err != nil {
				return err
			}
			// A lab that is reused may have agents: with OnDelete they are not replaced.
			if err := calico.Agent.Delete(ctx, labaccess.Cluster(r)); err != nil {
				return err
			}
			if err := apply(ctx, r, version); err != nil {
				return err
			}
			if err := calico.Peer(ctx, labaccess.Cluster(r), addressOf(r, tor), torASN); err != nil {
				return err
			}
			if err := kubeadm.ApplyKubeProxy(ctx, labaccess.Lab(r)); err != nil {
				return err
			}
			if err := calico.PodsCanStart(ctx, labaccess.Lab(r)); err != nil {
				return err
			}
			if err := calico.Agent.Ready(ctx, labaccess.Cluster(r), labaccess.Cluster(r).Nodes(), 2*time.Minute); err != nil {
				return err
			}
			return installed(ctx, r, services{kubeProxy: true, sessions: true})
		},
		Ends: s.ends(), Paths: s.paths(probe.DefaultInterval, probe.DefaultTCPInterval, true),
		Release: apply,
		Nodes:   allNodes,
		Pods:    []workload.Pods{calico.Agent.Pods},
		Roll:    restart(calico.Agent),
	}.withAgents(all(calico.Agent.Pods), func(version string) string { return calico.Images(version)[0] }, sessionsAndPods)
}
