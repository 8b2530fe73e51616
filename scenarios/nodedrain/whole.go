package nodedrain

import (
	"context"
	"net/netip"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
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
	values := release.Routed(apiServer)
	values["ipam"] = map[string]any{"mode": cilium.ClusterPool}
	// The removed node must not take the operator with it.
	values["operator"] = map[string]any{
		"replicas":     int64(1),
		"nodeSelector": map[string]any{"kubernetes.io/hostname": lab.Clusters[0].Nodes[0].Name},
	}
	return release.Release{Version: version, Values: values}
}

// installWhole is install with the vendor's chart. The agents come last: each makes its
// CiliumNode if there is none, and the order of CiliumNodes is the incident's.
func installWhole(version string) framework.Action {
	return func(ctx context.Context, r *framework.Run) error {
		whole := wholeIncident(r.Topology, version, labaccess.Cluster(r).APIServer())
		peer := labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
			return release.PeeringOf(r.Topology).Apply(ctx, c, release.TypesOf(version)) // MetalLB's speaker has no graceful restart
		})
		ready := labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error { return whole.Ready(ctx, c, all) })
		return framework.InOrder(
			release.Uninstalled(all, podCIDR), labaccess.OnLab(whole.WithoutAgents().Apply), createCiliumNodes, peer,
			labaccess.SessionsUp(all, framework.InOrder(labaccess.OnLab(whole.Apply), ready)),
		)(ctx, r)
	}
}
