package upgrade

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Intervals of probes on guests. Without hardware support each packet takes CPU time from
// the component under test.
const (
	guestUDPEvery   = 50 * time.Millisecond
	guestOtherEvery = 200 * time.Millisecond
)

// kubeProxyUpgrade upgrades kube-proxy in mode ipvs. The machine's kernel may have no
// IPVS, so the workers have their own kernels. master has no kube-proxy.
func kubeProxyUpgrade() Upgrade {
	s := small{component: "kube-proxy", number: 63, kernel: "6.1"}
	nodes := []string{worker1, worker2}
	apply := func(ctx context.Context, r *framework.Run, node, version string) error {
		p := kubeproxy.Proxy{Version: version, Mode: kubeproxy.IPVS, Node: node, PodCIDR: s.podCIDR(), Watched: clusterIP}
		return p.Apply(ctx, labaccess.Lab(r))
	}
	return Upgrade{
		Component: "kube-proxy", Form: framework.Whole, Topology: s.topology(), Besides: "pods wired by the plugin ptp, static routes on the ToR",
		Images: func(version string) []string { return []string{kubeproxy.Image(version), workload.ProbeImage} },
		Install: func(ctx context.Context, r *framework.Run, version string) error {
			err := labaccess.Lab(r).EachNode(ctx, []string{master, worker1, worker2}, func(ctx context.Context, n *kindlab.Node) error {
				return workload.Wire(ctx, labaccess.Lab(r), n.Name())
			})
			if err != nil {
				return err
			}
			starts, ctx := errgroup.WithContext(ctx)
			starts.Go(func() error { return workload.StartProbes(ctx, labaccess.Cluster(r), pods) })
			starts.Go(func() error { return applyService(ctx, r) })
			for _, node := range nodes {
				starts.Go(func() error {
					if err := kubeproxy.MarkDrop(ctx, labaccess.Lab(r).Node(node)); err != nil {
						return err
					}
					return apply(ctx, r, node, version)
				})
			}
			return starts.Wait()
		},
		Ends: s.ends(), Paths: s.paths(guestUDPEvery, guestOtherEvery, true),
		Nodes: nodes,
		Roll:  apply,
		// A guest without hardware support takes minutes for a start and a sync.
		RollWithin: 10 * time.Minute,
	}
}
