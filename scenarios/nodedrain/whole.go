package nodedrain

import (
	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
)

// isWhole reports whether a version runs whole, with Cilium's BGP control plane in place of
// the MetalLB speaker.
func isWhole(version string) bool { return semver.Compare("v"+version, "v"+labvalues.First) >= 0 }

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
func wholeIncident(version string) release.Release {
	values := release.NativeRouting()
	values["ipam"] = map[string]any{"mode": cilium.ClusterPool}
	// The removed node must not take the operator with it.
	values["operator"] = map[string]any{
		"replicas":     int64(1),
		"nodeSelector": map[string]any{"kubernetes.io/hostname": lab.Clusters[0].Nodes[0].Name},
	}
	return release.Release{Version: version, Values: values, NoServices: true}
}

// installWhole is install with the vendor's chart. The agents come last: each makes its
// CiliumNode if there is none, and the order of CiliumNodes is the incident's.
func installWhole(version string) framework.Action {
	whole := wholeIncident(version)
	peer := release.Peering{}.Apply(release.TypesOf(version)) // without graceful restart, which MetalLB's speaker has not
	return framework.InOrder(
		release.Uninstalled(all, podCIDR), whole.WithoutAgents().Apply, createCiliumNodes, peer,
		labaccess.SessionsUp(all, framework.InOrder(whole.Apply, whole.Ready(all...))),
	)
}
