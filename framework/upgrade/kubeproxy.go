package upgrade

import (
	"context"
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/kubeproxy"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/host"
)

// Intervals of probes on guests. Without hardware support each packet takes CPU time from
// the component under test.
const (
	guestUDPEvery   = 50 * time.Millisecond
	guestOtherEvery = 200 * time.Millisecond
)

// kubeProxyUpgrade upgrades kube-proxy: today's, or in mode ipvs the one of Kubernetes 1.11 to
// 1.13.
func kubeProxyUpgrade(from, to string, s Settings) (Upgrade, error) {
	switch today := atLeast(from, firstOfToday); {
	case today != atLeast(to, firstOfToday):
		return Upgrade{}, fmt.Errorf("an upgrade of kube-proxy from %s to %s has no lab: no node runs both; "+
			"expected two versions from 1.11 to 1.13, or two from %s on", from, to, firstOfToday)
	case today:
		return kubeProxyToday(s)
	case s.Config != "" || s.Mode != "" && s.Mode != kubeadm.IPVS:
		return Upgrade{}, fmt.Errorf("kube-proxy %s runs in mode ipvs with relapse's own configuration: "+
			"expected neither another mode nor a configuration", from)
	}
	return kubeProxyOf13(), nil
}

// firstOfToday is the first version of kube-proxy that kubeadm's manifest of today runs.
const firstOfToday = "1.31.0"

// podsWired is what else runs on a lab of kube-proxy.
const podsWired = "pods wired by the plugin ptp, static routes on the ToR"

// kubeProxyToday upgrades kube-proxy by kubeadm's manifest, with the user's
// KubeProxyConfiguration. In mode ipvs the workers have their own kernels, as the machine's
// may have no IPVS, and master has no kube-proxy.
func kubeProxyToday(given Settings) (Upgrade, error) {
	s := small{component: "kube-proxy", number: 63}
	config, err := kubeadm.NewProxyConfig(given.Config, given.Mode, s.podCIDR())
	if err != nil {
		return Upgrade{}, fmt.Errorf("the KubeProxyConfiguration: %w", err)
	}
	nodes, within := allNodes, rollWithin
	udp, others := probe.DefaultInterval, probe.DefaultTCPInterval
	if config.Mode == kubeadm.IPVS {
		s.kernel, nodes, within = "6.1", nodes[1:], guestRollWithin
		udp, others = guestUDPEvery, guestOtherEvery
	}
	at := func(version string) kubeadm.Proxy {
		return kubeadm.Proxy{Version: version, Config: config, Nodes: nodes}
	}
	u := Upgrade{
		Component: "kube-proxy", Form: framework.Whole, Topology: s.topology(), Mode: config.Mode, Replaced: config.Replaced,
		Besides: "mode " + config.Mode + ", API server " + kubeadm.KubernetesVersion + ", " + podsWired,
		Images:  func(version string) []string { return []string{kubeadm.ProxyImage(version), workload.ProbeImage} },
		Install: func(version string) framework.Action { // a lab that is reused may have pods
			return at(version).Installed(within, workload.Probes(pods...), applyService)
		},
		Ends: s.ends(), Paths: s.paths(udp, others, true),
		Release: func(version string) framework.Action { return at(version).Declare },
		Nodes:   nodes,
		Roll: func(ctx context.Context, r *framework.Run, node, version string) error {
			return at(version).Roll(ctx, labaccess.Lab(r), node, within)
		},
		RollWithin: within,
		Pods:       []workload.Pods{kubeadm.KubeProxy.Pods},
	}.withAgents(all(kubeadm.KubeProxy.Pods), kubeadm.ProxyImage,
		func(ctx context.Context, r *framework.Run, node, version string, _ time.Time) error {
			if err := at(version).Synced(ctx, labaccess.Lab(r), node, within); err != nil {
				return err
			}
			return followsServices(ctx, r, kubeProxies, node, within)
		})
	if config.Mode == kubeadm.NFTables {
		u.Fit = host.ProxiesByNFTables
	}
	return u, nil
}

// guestRollWithin bounds the change of one node that is a guest: without hardware support
// it takes minutes for a start and a sync.
const guestRollWithin = 10 * time.Minute

// kubeProxyOf13 upgrades kube-proxy of Kubernetes 1.11 to 1.13 in mode ipvs. The machine's
// kernel may have no IPVS, so the workers have their own kernels. master has no kube-proxy.
func kubeProxyOf13() Upgrade {
	s := small{component: "kube-proxy", number: 63, kernel: "6.1"}
	nodes := []string{worker1, worker2}
	at := func(node, version string) kubeproxy.Proxy {
		return kubeproxy.Proxy{Version: version, Mode: kubeproxy.IPVS, Node: node, PodCIDR: s.podCIDR(), Watched: clusterIP}
	}
	return Upgrade{
		Component: "kube-proxy", Form: framework.Whole, Topology: s.topology(), Mode: kubeadm.IPVS, Besides: podsWired,
		Images: func(version string) []string { return []string{kubeproxy.Image(version), workload.ProbeImage} },
		Install: func(version string) framework.Action {
			starts := []framework.Action{workload.Probes(pods...), applyService}
			for _, node := range nodes {
				starts = append(starts, at(node, version).Apply)
			}
			return framework.InOrder(workload.WireNodes, framework.AtOnce(starts...))
		},
		Ends: s.ends(), Paths: s.paths(guestUDPEvery, guestOtherEvery, true),
		Nodes: nodes,
		Roll: func(ctx context.Context, r *framework.Run, node, version string) error {
			return at(node, version).Apply(ctx, r)
		},
		RollWithin: guestRollWithin,
	}.withAgents(kubeproxy.Pods, kubeproxy.Image,
		func(ctx context.Context, r *framework.Run, node, version string, _ time.Time) error {
			if err := at(node, version).Synced(ctx, labaccess.Lab(r)); err != nil {
				return err
			}
			return followsServices(ctx, r, kubeProxies, node, guestRollWithin)
		})
}
