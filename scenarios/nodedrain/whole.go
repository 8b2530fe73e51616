package nodedrain

import (
	"context"
	"net/netip"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology"
)

// isWhole reports whether a version runs whole, with Cilium's BGP control plane in place of
// the MetalLB speaker.
func isWhole(version string) bool { return semver.Compare("v"+version, "v"+release.First) >= 0 }

func wholeVariant(version string) framework.Variant {
	return framework.Variant{
		Name: "cilium-" + version, Role: framework.Unclassified, Form: framework.Whole,
		OnlyOwnLab: "whole Cilium leaves BPF programs and policy routes on nodes, which are not known to come back",
		Components: map[string]string{"cilium": version},
		Images:     append(release.Images(version), workload.ProbeImage),
		Script: func() framework.Script {
			s := common(version)
			s.Install = framework.InOrder(installWhole(version), workload.ProbesOn(all...))
			s.Expected = []framework.Finding{unannounced}
			return s
		},
	}
}

// wholeIncident is Cilium by the vendor's chart, with the values that say what incident says
// of a slice. Ranges of pods are set by the release.
func wholeIncident(lab topology.Topology, version string, apiServer netip.AddrPort) release.Release {
	return release.Release{Version: version, Values: release.Values{
		"ipam":                 map[string]any{"mode": cilium.ClusterPool},
		"routingMode":          "native",
		"autoDirectNodeRoutes": true,
		"enableIPv4Masquerade": false,
		"kubeProxyReplacement": false,
		"bgpControlPlane":      map[string]any{"enabled": true},
		// Without kube-proxy nothing serves the API server's Service.
		"k8sServiceHost": apiServer.Addr().String(),
		"k8sServicePort": int64(apiServer.Port()),
		// The removed node must not take the operator with it.
		"operator": map[string]any{
			"replicas":     int64(1),
			"nodeSelector": map[string]any{"kubernetes.io/hostname": lab.Clusters[0].Nodes[0].Name},
		},
	}}
}

// peering is the peering of the incident: both ToRs, and no graceful restart, which the MetalLB
// speaker does not have.
func peering(lab topology.Topology) release.Peering {
	p := release.Peering{RoutersASN: topology.TorASN, ASN: topology.ClusterASN}
	for _, r := range lab.BGPPeers() {
		p.Routers = append(p.Routers, r.Address)
	}
	return p
}

// installWhole is install with the vendor's chart. The agents come last: each makes its
// CiliumNode if there is none, and the order of CiliumNodes is the incident's.
func installWhole(version string) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		l, c := labaccess.Lab(r), labaccess.Cluster(r)
		if err := release.Uninstall(ctx, l, all, podCIDR); err != nil {
			return err
		}
		whole := wholeIncident(r.Topology, version, c.APIServer())
		if err := whole.WithoutAgents().Apply(ctx, l); err != nil {
			return err
		}
		if err := createCiliumNodes(ctx, r); err != nil {
			return err
		}
		if err := peering(r.Topology).Apply(ctx, c, release.TypesOf(version)); err != nil {
			return err
		}
		began := time.Now()
		if err := whole.Apply(ctx, l); err != nil {
			return err
		}
		if err := whole.Ready(ctx, c, all); err != nil {
			return err
		}
		return l.SessionsUp(ctx, all, began)
	}
}
