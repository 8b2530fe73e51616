package report

import (
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Topology is what the lab was made of.
type Topology struct {
	Networks []Network `json:"networks"`
	Members  []Member  `json:"members"`
}

// Network is one broadcast domain.
type Network struct {
	Name   string       `json:"name"`
	Subnet netip.Prefix `json:"subnet"`
}

// Kinds of a member.
const (
	NodeMember   = "node"
	RouterMember = "router"
	HostMember   = "host"
)

// Member is what is attached to networks.
type Member struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // node, router or host
	// Role is a node's role in its cluster. ASN is the autonomous system of a router or of
	// a node's cluster; zero if there is none.
	Role  string `json:"role,omitempty"`
	ASN   uint32 `json:"asn,omitempty"`
	Links []Link `json:"links"`
	// Via are the routers that hold its default route.
	Via []string `json:"via,omitempty"`
	// Software is what speaks BGP on a router: gobgp, frr or bird. Reports from before
	// routers had kinds have none, and mean gobgp.
	Software string `json:"software,omitempty"`
	// Kernel is the kernel that the topology requests for a guest.
	Kernel string `json:"kernel,omitempty"`
}

// Link attaches a member to a network: the first one is its eth0, and so on.
type Link struct {
	Network string     `json:"network"`
	Address netip.Addr `json:"address"`
}

// TopologyOf is a declared topology, as a report holds it.
func TopologyOf(t topology.Topology) *Topology {
	r := Topology{Networks: each.Of(t.Networks, func(n topology.Network) Network { return Network{Name: n.Name, Subnet: n.Subnet} })}
	for _, h := range t.Hosts {
		r.Members = append(r.Members, Member{Name: h.Name, Kind: HostMember, Links: links(h.Links), Via: h.Via})
	}
	for _, one := range t.Routers {
		r.Members = append(r.Members, Member{
			Name: one.Name, Kind: RouterMember, Software: string(one.Kind), ASN: one.ASN, Links: links(one.Links),
		})
	}
	for _, c := range t.Clusters {
		for _, n := range c.Nodes {
			r.Members = append(r.Members, Member{
				Name: n.Name, Kind: NodeMember, Role: string(n.Role), ASN: c.ASN, Links: links(n.Links), Via: n.Via, Kernel: n.Kernel,
			})
		}
	}
	return &r
}

// Subnets are the subnets of the networks, by name.
func (t *Topology) Subnets() map[string]netip.Prefix {
	subnets := map[string]netip.Prefix{}
	for _, n := range t.Networks {
		subnets[n.Name] = n.Subnet
	}
	return subnets
}

func links(declared []topology.Link) []Link {
	return each.Of(declared, func(l topology.Link) Link { return Link{Network: l.Network, Address: l.Address} })
}

// TopologyOf is the topology of a variant's lab; nil in reports from before reports had one.
func (r Report) TopologyOf(v Variant) *Topology {
	if v.Topology != nil {
		return v.Topology
	}
	return r.Topology
}
