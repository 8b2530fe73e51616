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

// The incident's names.
const (
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
	Name: "node-drain", Networks: []topology.Network{nodeNet, uplink}, Hosts: []topology.Host{uplink.Host("outside", 10)},
	Clusters: []topology.Cluster{{
		PodCIDR: podCIDR, NodeMask: 24,
		Nodes: []topology.Node{nodeNet.Node(master1, 32), nodeNet.Node(master3, 31), nodeNet.Node(master2, 21), nodeNet.Node(node1, 23)},
	}},
}.Behind([]topology.Router{tor(tors[0], 239), tor(tors[1], 238)})

func tor(name string, last byte) topology.Router {
	outer := uplink.Last(last)
	return topology.Router{
		Name: name, ASN: topology.TorASN, ID: outer.Address, Links: []topology.Link{outer, nodeNet.Last(last)},
		Peers: []topology.Peers{{Network: nodeNet.Name, ASN: topology.ClusterASN}},
	}
}

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
