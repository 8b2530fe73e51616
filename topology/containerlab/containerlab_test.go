package containerlab

import (
	"errors"
	"flag"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
)

// drain has the shape of node-drain's lab: four nodes in a rack behind two
// ToR routers, and a host on the routers' far side.
func drain() topology.Topology {
	rack, outside := topology.NewNetwork("rack", "10.4.94.0/24"), topology.NewNetwork("outside", "10.4.36.0/24")
	return topology.Topology{
		Name: "node-drain", Networks: []topology.Network{rack, outside}, Hosts: []topology.Host{outside.Host("client", 10)},
		Clusters: []topology.Cluster{{
			Name: "drain", PodCIDR: prefix("10.5.112.0/21"), NodeMask: 24,
			Nodes: []topology.Node{rack.Node("master1", 32), rack.Node("master3", 31), rack.Node("master2", 21), rack.Node("node1", 23)},
		}},
	}.Behind(topology.TwoToRs(rack, outside))
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

func TestFilesGolden(t *testing.T) {
	for name, lab := range labs {
		t.Run(name, func(t *testing.T) {
			files := must.Get(Files(lab))(t)
			dir := filepath.Join("testdata", name)
			if *update {
				must.NoError(t, errors.Join(os.RemoveAll(dir), Write(dir, lab)))
			}
			golden := 0
			err := filepath.WalkDir(dir, func(_ string, f fs.DirEntry, err error) error {
				if err == nil && !f.IsDir() {
					golden++
				}
				return err
			})
			if err != nil || golden != len(files) {
				t.Errorf("%d golden files in %s for %d: %v", golden, dir, len(files), err)
			}
			for _, f := range files {
				want := must.Read(t, filepath.Join(dir, f.Name))
				must.Equal(t, f.Name, string(want), f.Text)
			}
		})
	}
}

func TestWriteInvalid(t *testing.T) {
	lab, dual := drain(), drain()
	lab.Clusters[0].ASN = 0
	dual.Dual = true // it would lose a family
	dir := filepath.Join(t.TempDir(), "lab")
	for _, lab := range []topology.Topology{lab, dual} {
		if err, ok := errors.AsType[*topology.InvalidError](Write(dir, lab)); !ok {
			t.Errorf("Write() = %v, want an *InvalidError", err)
		}
	}
	must.Is(t, must.Err(os.Stat(dir)), fs.ErrNotExist) // nothing is written
}

func TestWriteToNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	must.Fail(t, Write(file, drain()), `exporting topology "node-drain"`)
}
