package snapshot

import (
	"context"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/relapse-dev/relapse/topology/each"
)

// CiliumBGP is the Speaker of what Cilium's BGP control plane announces.
const CiliumBGP = "cilium"

// What is read of Cilium's types of these names (github.com/cilium/cilium/pkg/k8s/apis/cilium.io,
// v2 from 1.18 on, v2alpha1 of 1.16 and 1.17).
type (
	ciliumBGPEntry struct {
		Type     string                `json:"advertisementType"`
		Selector *metav1.LabelSelector `json:"selector"`
		Service  *ciliumBGPServices    `json:"service"`
	}
	ciliumBGPServices struct {
		Addresses     []string `json:"addresses"`
		Aggregation   int      `json:"aggregationLengthIPv4"`
		AggregationV6 int      `json:"aggregationLengthIPv6"`
	}
	ciliumBGPClusterConfig struct {
		Spec struct {
			NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
			BGPInstances []struct {
				Peers []struct {
					PeerConfigRef *struct {
						Name string `json:"name"`
					} `json:"peerConfigRef"`
				} `json:"peers"`
			} `json:"bgpInstances"`
		} `json:"spec"`
	}
	ciliumBGPPeerConfig struct {
		Spec struct {
			Families []struct {
				AFI            string                `json:"afi"`
				Advertisements *metav1.LabelSelector `json:"advertisements"`
			} `json:"families"`
		} `json:"spec"`
	}
	ciliumBGPAdvertisement struct {
		Spec struct {
			Advertisements []ciliumBGPEntry `json:"advertisements"`
		} `json:"spec"`
	}
	ciliumPodIPPool struct{} // its labels are read
)

// ciliumBGPClass is the loadBalancerClass that Cilium's BGP control plane serves, besides none.
const ciliumBGPClass = "io.cilium/bgp-control-plane"

// ciliumBGPAdvertisements are what Cilium's nodes are to announce: one item for each CiliumBGPClusterConfig and each
// entry of a CiliumBGPAdvertisement that its peers select. The ranges of an item are the addresses of the Services
// that the entry selects, by the rules of the agent (pkg/bgp/manager/reconciler/service.go). A configuration whose
// peers select nothing, and an entry of pods' ranges that no peer selects, have an item that is Unselected.
func (c *cluster) ciliumBGPAdvertisements(ctx context.Context) ([]BGPAdvertisement, error) {
	configs, err := ciliumBGP(ctx, c, ciliumClusterConfigs)
	if err != nil || configs == nil {
		return nil, err
	}
	peerings, err := ciliumBGP(ctx, c, ciliumPeerConfigs)
	advertisements, err2 := ciliumBGP(ctx, c, ciliumAdvertisements)
	nodes, err3 := listedNodes.list(ctx, c)
	services, err4 := listedServices.list(ctx, c)
	pools, err5 := ciliumBGP(ctx, c, ciliumPodPools)
	if err := failures(err, err2, err3, err4, err5); err != nil {
		return nil, err
	}
	var all []BGPAdvertisement
	items := func(advertisement *object[ciliumBGPAdvertisement], base BGPAdvertisement, families map[string]bool) error {
		if advertisement.err != nil {
			return advertisement.err
		}
		base.Name, base.Speaker = advertisement.name, CiliumBGP
		for _, entry := range advertisement.value.Spec.Advertisements {
			more, err := entry.items(base, services, pools, families)
			if err != nil {
				return fmt.Errorf("%s: a selector: %w", advertisement, err)
			}
			all = append(all, more...)
		}
		return nil
	}
	unselected := slices.Clone(advertisements)
	for _, config := range configs {
		if config.err != nil {
			return nil, config.err
		}
		announce, err := selectedNodes(nodes, config.value.Spec.NodeSelector)
		if err != nil {
			return nil, fmt.Errorf("%s: spec.nodeSelector: %w", config, err)
		}
		peers, nothing := config.value.peerConfigs(), true
		for _, advertisement := range advertisements {
			families, err := advertised(advertisement, peerings, peers)
			if err != nil {
				return nil, err
			}
			if len(families) == 0 {
				continue
			}
			if nothing = false; len(announce) > 0 { // else no node selects it by these peers
				unselected = slices.DeleteFunc(unselected, func(o *object[ciliumBGPAdvertisement]) bool { return o == advertisement })
			}
			if err := items(advertisement, BGPAdvertisement{Nodes: announce, Families: slices.Sorted(maps.Keys(families))}, families); err != nil {
				return nil, err
			}
		}
		if nothing {
			all = append(all, BGPAdvertisement{Name: config.name, Speaker: CiliumBGP, Nodes: announce, Unselected: true})
		}
	}
	for _, advertisement := range unselected {
		if err := items(advertisement, BGPAdvertisement{Unselected: true}, nil); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// peerConfigs are the names of the CiliumBGPPeerConfigs of the peers.
func (c ciliumBGPClusterConfig) peerConfigs() map[string]bool {
	names := map[string]bool{}
	for _, instance := range c.Spec.BGPInstances {
		for _, p := range instance.Peers {
			if p.PeerConfigRef != nil {
				names[p.PeerConfigRef.Name] = true
			}
		}
	}
	return names
}

// items are what an entry announces of pods and of Services; base says who announces it. An entry that no peer
// selects has items of pods alone.
func (e ciliumBGPEntry) items(
	base BGPAdvertisement, services []*object[Service], pools []*object[ciliumPodIPPool], families map[string]bool,
) ([]BGPAdvertisement, error) {
	if base.Unselected {
		services = nil
	}
	shared, alone, err := e.addresses(services, families)
	if err != nil {
		return nil, err
	}
	if base.PodCIDRs, base.PodPools, err = e.pods(pools); err != nil {
		return nil, err
	}
	var all []BGPAdvertisement
	ofPods := base.PodCIDRs || len(base.PodPools) > 0
	if ofPods || !base.Unselected && len(shared) == 0 && len(alone) == 0 { // of pods, or of nothing so far
		all = append(all, base)
	}
	if len(shared) > 0 {
		aggregated := base
		aggregated.Ranges = shared
		aggregated.AggregationLength, aggregated.AggregationLengthV6 = e.Service.Aggregation, e.Service.AggregationV6
		all = append(all, aggregated)
	}
	if len(alone) > 0 {
		base.Ranges = alone
		all = append(all, base)
	}
	return all, nil
}

// pods are the pods' ranges that an entry announces: the ranges in CiliumNode.spec.ipam.podCIDRs, or of pools, in
// order of name (pkg/bgp/manager/reconciler/pod_cidr.go and pod_ip_pool.go).
func (e ciliumBGPEntry) pods(pools []*object[ciliumPodIPPool]) (cidrs bool, names []string, err error) {
	if e.Type != "CiliumPodIPPool" {
		return e.Type == "PodCIDR", nil, nil
	}
	for _, pool := range pools {
		selected, err := selects(e.Selector, labelsOf(pool, "io.cilium.podippool"))
		if err != nil {
			return false, nil, err
		}
		if selected {
			names = append(names, pool.name)
		}
	}
	return false, names, nil
}

// addresses are the LoadBalancer addresses of the Services that an entry of type Service selects. It may aggregate
// the shared ones; addresses of policy Local stay alone. Addresses of other families than the peers' are left out.
func (e ciliumBGPEntry) addresses(services []*object[Service], families map[string]bool) (shared, alone []AddressRange, err error) {
	if e.Type != "Service" || e.Service == nil || !slices.Contains(e.Service.Addresses, "LoadBalancerIP") {
		return nil, nil, nil
	}
	for _, s := range services {
		selected, err := selects(e.Selector, labelsOf(s, "io.kubernetes.service"))
		if err != nil {
			return nil, nil, err
		}
		if !selected || s.value.Class != "" && s.value.Class != ciliumBGPClass {
			continue
		}
		to := &shared
		if s.value.Local {
			to = &alone
		}
		for _, address := range s.value.LoadBalancerIPs {
			if address.Is4() && !families["ipv4"] || address.Is6() && !families["ipv6"] {
				continue
			}
			*to = append(*to, AddressRange{address, address})
		}
	}
	return shared, alone, nil
}

// advertised are the address families, ipv4 and ipv6, for which peers with one of these
// configurations are sent an advertisement.
func advertised(
	advertisement *object[ciliumBGPAdvertisement], peerings []*object[ciliumBGPPeerConfig], peers map[string]bool,
) (map[string]bool, error) {
	families := map[string]bool{}
	for _, peering := range peerings {
		if !peers[peering.name] {
			continue
		}
		if peering.err != nil {
			return nil, peering.err
		}
		for _, family := range peering.value.Spec.Families {
			selected, err := selects(family.Advertisements, advertisement.labels)
			if err != nil {
				return nil, fmt.Errorf("%s: spec.families: %w", peering, err)
			}
			if selected {
				families[family.AFI] = true
			}
		}
	}
	return families, nil
}

// Cilium's resources of BGP, of each version that has them, the newest first.
var (
	ciliumClusterConfigs = ciliumBGPList[ciliumBGPClusterConfig]("ciliumbgpclusterconfigs")
	ciliumPeerConfigs    = ciliumBGPList[ciliumBGPPeerConfig]("ciliumbgppeerconfigs")
	ciliumAdvertisements = ciliumBGPList[ciliumBGPAdvertisement]("ciliumbgpadvertisements")
	ciliumPodPools       = ciliumBGPList[ciliumPodIPPool]("ciliumpodippools")
)

func ciliumBGPList[T any](name string) []listed[T] {
	return each.Of([]string{"v2", "v2alpha1"}, func(version string) listed[T] {
		return customList[T](schema.GroupVersionResource{Group: "cilium.io", Version: version, Resource: name}, name)
	})
}

// ciliumBGP lists a resource of Cilium's BGP control plane, in order of name. A cluster that does
// not know it has nil.
func ciliumBGP[T any](ctx context.Context, c *cluster, versions []listed[T]) ([]*object[T], error) {
	var unknown error
	var asked []*resource
	for _, version := range versions {
		all, err := version.list(ctx, c)
		if apierrors.IsNotFound(err) {
			unknown, asked = err, append(asked, version.resource)
			continue
		}
		if err == nil { // what absent has found out is of all versions, by the first one
			c.absentees.Delete(versions[0].resource)
		}
		return all, err
	}
	return nil, c.absent(ctx, unknown, asked...)
}

// selects reports whether a selector selects labels. Without a selector it is false.
func selects(s *metav1.LabelSelector, labelSet map[string]string) (bool, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(labelSet)), err
}

// labelsOf are the labels by which Cilium selects an object: name and namespace are among them.
func labelsOf[T any](o *object[T], prefix string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, o.labels)
	all[prefix+".name"], all[prefix+".namespace"] = o.name, o.namespace
	return all
}
