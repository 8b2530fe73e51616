package snapshot

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
var MetalLBPeers = listSource("BGPPeers of MetalLB", metalLBPeers, func(s *Snapshot) *List[MetalLBPeer] { return &s.MetalLBPeers }, nil)

var metalLBPeers = customAs(schema.GroupVersionResource{Group: metalLB.Group, Version: "v1beta2", Resource: "bgppeers"}, "BGPPeers",
	func(o *unstructured.Unstructured, of struct {
		Spec struct {
			BFDProfile string `json:"bfdProfile"`
		} `json:"spec"`
	}) (MetalLBPeer, bool, error) {
		return MetalLBPeer{Namespace: o.GetNamespace(), Name: o.GetName(), BFDProfile: of.Spec.BFDProfile}, true, nil
	})
