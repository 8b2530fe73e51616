package containerlab

import (
	"bytes"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/relapse-dev/relapse/topology"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
)

// drain has the shape of node-drain's lab: four nodes in a rack behind two
// ToR routers, and a host on the routers' far side.
//
//	master1 master2 master3 node1
//	   |       |       |      |
//	---+-------+-------+------+---  rack 10.4.94.0/24
//	       |               |
//	     tor1            tor2
//	       |               |
//	-------+-------+-------+------  outside 10.4.36.0/24
//	            client
func drain() topology.Topology {
	node := func(name string, role topology.Role, last string) topology.Node {
		return topology.Node{
			Name: name, Role: role,
			Links: []topology.Link{{Network: "rack", Address: addr("10.4.94." + last)}},
			Via:   []string{"tor1", "tor2"},
		}
	}
	router := func(name, last string) topology.Router {
		return topology.Router{
			Name: name, ASN: 64524, ID: addr("10.4.36." + last),
			Links: []topology.Link{
				{Network: "rack", Address: addr("10.4.94." + last)},
				{Network: "outside", Address: addr("10.4.36." + last)},
			},
			Peers: []topology.Peers{{Network: "rack", ASN: 64513}},
		}
	}
	return topology.Topology{
		Name: "node-drain",
		Networks: []topology.Network{
			{Name: "rack", Subnet: prefix("10.4.94.0/24")},
			{Name: "outside", Subnet: prefix("10.4.36.0/24")},
		},
		Clusters: []topology.Cluster{{
			Name: "drain", ASN: 64513,
			PodCIDR: prefix("10.5.112.0/21"), NodeMask: 24,
			ServiceCIDR: prefix("10.96.0.0/16"),
			Nodes: []topology.Node{
				node("master1", topology.ControlPlane, "32"),
				node("master3", topology.Worker, "31"),
				node("master2", topology.Worker, "21"),
				node("node1", topology.Worker, "23"),
			},
		}},
		Routers: []topology.Router{router("tor1", "239"), router("tor2", "238")},
		Hosts: []topology.Host{{
			Name:  "client",
			Links: []topology.Link{{Network: "outside", Address: addr("10.4.36.10")}},
			Via:   []string{"tor1", "tor2"},
		}},
	}
}

// awkward has what makes the mapping hard: one name in all three name spaces,
// two clusters, a guest, a member with two links, a router that is BIRD and has no peers.
func awkward() topology.Topology {
	lab := drain()
	lab.Hosts[0].Name = "rack"
	lab.Hosts[0].Links = append(lab.Hosts[0].Links, topology.Link{Network: "rack", Address: addr("10.4.94.9")})
	lab.Routers[0].Name = "drain"
	lab.Routers[1].Peers = nil
	lab.Routers[1].Kind = topology.BIRD
	lab.Routers[0].Peers = append(lab.Routers[0].Peers, topology.Peers{Network: "outside", ASN: 4294967295, GracefulRestart: true})
	for i := range lab.Clusters[0].Nodes {
		lab.Clusters[0].Nodes[i].Via = []string{"tor2"}
	}
	lab.Hosts[0].Via = []string{"tor2", "drain"}
	lab.Hosts[0].Image = "relapse.dev/mariadb:10.11"
	lab.Clusters[0].Nodes[2].Kernel = "6.1"
	lab.Clusters = append(lab.Clusters, topology.Cluster{
		Name: "drain-worker", ASN: 65000, PodCIDR: prefix("10.6.0.0/16"), NodeMask: 24, ServiceCIDR: prefix("10.96.0.0/16"),
		Nodes: []topology.Node{{
			Name: "drain-control-plane", Role: topology.ControlPlane, Via: []string{"tor2"},
			Links: []topology.Link{{Network: "outside", Address: addr("10.4.36.11")}},
		}},
	})
	return lab
}

var labs = map[string]topology.Topology{"node-drain": drain(), "awkward": awkward(), "empty": {Name: "empty"}}

func TestExportGolden(t *testing.T) {
	for name, lab := range labs {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := Export(&got, lab); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".clab.yml")
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got), run with -update if the change is meant:\n%s", golden, diff)
			}
		})
	}
}

// What containerlab needs to wire a lab: each member is one node of the file,
// each of its links ends at the bridge of the right network with the right
// address, and no interface has two links.
func TestExportIsWired(t *testing.T) {
	for name, lab := range labs {
		t.Run(name, func(t *testing.T) {
			var text bytes.Buffer
			if err := Export(&text, lab); err != nil {
				t.Fatal(err)
			}
			var read struct {
				Topology struct {
					Nodes map[string]node // a key that is there twice is an error
					Links []link
				}
			}
			if err := yaml.Unmarshal(text.Bytes(), &read); err != nil {
				t.Fatal(err)
			}
			declared := func(key string) (kind, name string) {
				labels := read.Topology.Nodes[key].Labels
				return labels[labelPrefix+labelType], labels[labelPrefix+labelName]
			}
			taken := map[string]bool{}
			var got []string
			for _, l := range read.Topology.Links {
				for _, end := range l.Endpoints {
					if at := end.Node + ":" + end.Interface; taken[at] {
						t.Errorf("%s has two links", at)
					} else {
						taken[at] = true
					}
				}
				kind, member := declared(l.Endpoints[0].Node)
				bridge, network := declared(l.Endpoints[1].Node)
				got = append(got, strings.Join([]string{kind, member, bridge, network, l.Endpoints[0].IPv4}, " "))
			}
			var want []string
			for _, m := range lab.Members() {
				for _, l := range m.Links {
					network, _ := lab.Network(l.Network)
					address := netip.PrefixFrom(l.Address, network.Subnet.Bits())
					want = append(want, strings.Join([]string{string(m.Kind), m.Name, typeNetwork, l.Network, address.String()}, " "))
				}
			}
			slices.Sort(got)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("links (-declared +in the file):\n%s", diff)
			}
			if want := len(lab.Networks) + len(lab.Clusters) + len(lab.Members()); len(read.Topology.Nodes) != want {
				t.Errorf("%d nodes, want %d", len(read.Topology.Nodes), want)
			}
		})
	}
}

func TestExportInvalid(t *testing.T) {
	lab := drain()
	lab.Clusters[0].ASN = 0
	var b bytes.Buffer
	var invalid *topology.InvalidError
	if err := Export(&b, lab); !errors.As(err, &invalid) || b.Len() > 0 {
		t.Errorf("Export() = %v and wrote %d bytes, want an *InvalidError and nothing", err, b.Len())
	}
}

func TestExportFailingWriter(t *testing.T) {
	closed, err := os.Open(os.DevNull) // not open for writing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed.Close() })
	if err := Export(closed, drain()); err == nil || !strings.Contains(err.Error(), `writing topology "node-drain"`) {
		t.Errorf("Export() = %v", err)
	}
}
