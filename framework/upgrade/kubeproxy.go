package upgrade

import (
	"context"
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/host"
)

// Intervals of probes on guests: without hardware support each packet takes CPU time from the component under test.
const (
	guestUDPEvery   = 50 * time.Millisecond
	guestOtherEvery = 200 * time.Millisecond
)

// firstKubeProxy is the first version of kube-proxy that kubeadm's manifest of today runs.
const firstKubeProxy = "1.31.0"

const podsWired = "pods wired by the plugin ptp, static routes on the ToR"

// kubeProxyUpgrade upgrades kube-proxy by kubeadm's manifest, with the user's
// KubeProxyConfiguration. In mode ipvs the workers have their own kernels, as the machine's
// may have no IPVS, and master has no kube-proxy.
func kubeProxyUpgrade(from, to string, given Settings) (Upgrade, error) {
	if !atLeast(from, firstKubeProxy) || !atLeast(to, firstKubeProxy) {
		return Upgrade{}, fmt.Errorf("an upgrade of kube-proxy from %s to %s has no lab: expected two versions from %s on",
			from, to, firstKubeProxy)
	}
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
		Install: func(version string) framework.Action { // a reused lab may have pods
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
	}.withAgents(kubeadm.KubeProxy.Pods, kubeadm.ProxyImage,
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

// guestRollWithin bounds the change of a guest: without hardware support a start and a sync take minutes.
const guestRollWithin = 10 * time.Minute
