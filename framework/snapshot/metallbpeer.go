package snapshot

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// MetalLBPeer is a BGPPeer of MetalLB (metallb.io/v1beta2).
type MetalLBPeer struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// BFDProfile is the name of its BFDProfile; empty: its sessions have no BFD.
	BFDProfile string `json:"bfd_profile,omitempty"`
}

func (p MetalLBPeer) String() string { return p.Namespace + "/" + p.Name }

// MetalLBPeers is the source of MetalLB's BGPPeers, in order of namespace and name. A cluster that does
// not know the resource has none.
var MetalLBPeers = clusterList("BGPPeers of MetalLB", []*resource{metalLBPeers.resource, listedDefinitions.resource},
	(*cluster).metalLBPeers, func(s *Snapshot) *List[MetalLBPeer] { return &s.MetalLBPeers }, nil)

var metalLBPeers = customList[struct {
	Spec struct {
		BFDProfile string `json:"bfdProfile"`
	} `json:"spec"`
}](schema.GroupVersionResource{Group: metalLB.Group, Version: "v1beta2", Resource: "bgppeers"}, "BGPPeers")

func (c *cluster) metalLBPeers(ctx context.Context) (all []MetalLBPeer, err error) {
	peers, err := metalLBPeers.in(ctx, c)
	for _, of := range peers {
		if of.err != nil {
			return nil, of.err
		}
		all = append(all, MetalLBPeer{Namespace: of.namespace, Name: of.name, BFDProfile: of.is.Spec.BFDProfile})
	}
	return all, c.absent(ctx, err, metalLBPeers.resource)
}
