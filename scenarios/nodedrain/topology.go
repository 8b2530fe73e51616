package nodedrain

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// The incident's numbers and names.
const (
	torASN     = 64524
	clusterASN = 64513

	master1 = "master1"
	master2 = "master2"
	master3 = "master3"
	node1   = "node1"
)

var (
	podCIDR = netip.MustParsePrefix("10.5.112.0/21")
	nodeNet = topology.NewNetwork("nodes", "10.4.94.0/24")
	uplink  = topology.NewNetwork("uplink", "10.4.36.0/24")
	tors    = []string{"tor1", "tor2"}
)

// lab is the cluster that Record draws, with the incident's names and addresses.
// master1 is the only control plane: in the incident all three masters were, which
// changes nothing for the routes. kube-controller-manager gives the nodes their
// Node.spec.podCIDRs in the order in which they are listed.
var lab = topology.Topology{
	Name:     "node-drain",
	Networks: []topology.Network{nodeNet, uplink},
	Clusters: []topology.Cluster{{
		Name: "k8s", ASN: clusterASN, PodCIDR: podCIDR, NodeMask: 24, ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
		Nodes: []topology.Node{
			node(master1, topology.ControlPlane, "10.4.94.32"),
			node(master3, topology.Worker, "10.4.94.31"),
			node(master2, topology.Worker, "10.4.94.21"),
			node(node1, topology.Worker, "10.4.94.23"),
		},
	}},
	Routers: []topology.Router{
		tor(tors[0], "10.4.36.239", "10.4.94.239"),
		tor(tors[1], "10.4.36.238", "10.4.94.238"),
	},
	Hosts: []topology.Host{{Name: "outside", Links: []topology.Link{uplink.At("10.4.36.10")}, Via: tors}},
}

func node(name string, role topology.Role, addr string) topology.Node {
	return topology.Node{Name: name, Role: role, Links: []topology.Link{nodeNet.At(addr)}, Via: tors}
}

func tor(name, outer, inner string) topology.Router {
	return topology.Router{
		Name: name, ASN: torASN, ID: netip.MustParseAddr(outer),
		Links: []topology.Link{uplink.At(outer), nodeNet.At(inner)},
		Peers: []topology.Peers{{Network: nodeNet.Name, ASN: clusterASN}},
	}
}

// addressOf is the address of a node or router on the nodes' network of a lab.
func addressOf(lab topology.Topology, name string) netip.Addr {
	addr, _ := lab.AddressOn(name, nodeNet.Name)
	return addr
}

// routerParameter chooses the software of the ToRs.
var routerParameter = framework.Parameter{
	Name: "router", Default: string(topology.GoBGP), About: "what speaks BGP on the ToRs: gobgp, frr or bird",
}

// withRouters is a scenario with ToRs of another kind. The script is the same.
func withRouters(s framework.Scenario, values map[string]string) (framework.Scenario, error) {
	kind := topology.RouterKind(cmp.Or(values[routerParameter.Name], routerParameter.Default))
	if !slices.Contains(topology.RouterKinds, kind) {
		return framework.Scenario{}, fmt.Errorf("%s %q: want one of %q", routerParameter.Name, kind, topology.RouterKinds)
	}
	if kind == topology.GoBGP {
		return s, nil
	}
	s.Topology.Routers = slices.Clone(s.Topology.Routers)
	for i := range s.Topology.Routers {
		s.Topology.Routers[i].Kind = kind
	}
	_, version, _ := strings.Cut(kindlab.RouterImage(kind), ":")
	software := strings.ToUpper(string(kind)) + " " + version
	s.Incident.Diagram = strings.Replace(s.Incident.Diagram, "GoBGP", software, 1)
	s.Variants = slices.Clone(s.Variants)
	for i, v := range s.Variants {
		s.Variants[i].Components = withRouter(v.Components, kind, version)
	}
	at := s.At
	s.At = func(versions map[string]string) framework.Variant {
		v := at(versions)
		v.Components = withRouter(v.Components, kind, version)
		return v
	}
	return s, nil
}

// withRouter are a variant's components with the software of the ToRs.
func withRouter(components map[string]string, kind topology.RouterKind, version string) map[string]string {
	with := maps.Clone(components)
	with[string(kind)] = version
	return with
}
