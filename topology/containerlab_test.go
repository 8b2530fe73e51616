package topology

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var compare = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

func export(t testing.TB, lab Topology) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := lab.ExportContainerlab(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestExportContainerlabGolden(t *testing.T) {
	checkGolden(t, "node-drain.clab.yml", string(export(t, drain())))
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	golden := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), run with -update if the change is meant:\n%s", golden, diff)
	}
}

// awkward has what makes the mapping hard: one name in all three name spaces,
// two clusters, a guest, a member with two links, a router without peers.
func awkward() Topology {
	lab := drain()
	lab.Hosts[0].Name = "rack"
	lab.Hosts[0].Links = append(lab.Hosts[0].Links, Link{Network: "rack", Address: addr("10.4.94.9")})
	lab.Routers[0].Name = "drain"
	lab.Routers[1].Peers = nil
	lab.Routers[0].Peers = append(lab.Routers[0].Peers, Peers{Network: "outside", ASN: 4294967295, GracefulRestart: true})
	for i := range lab.Clusters[0].Nodes {
		lab.Clusters[0].Nodes[i].Via = []string{"tor2"}
	}
	lab.Hosts[0].Via = []string{"tor2", "drain"}
	lab.Hosts[0].Image = "relapse.dev/mariadb:10.11"
	lab.Clusters[0].Nodes[2].Kernel = "6.1"
	lab.Clusters = append(lab.Clusters, Cluster{
		Name: "drain-worker", ASN: 65000, PodCIDR: prefix("10.6.0.0/16"), NodeMask: 24, ServiceCIDR: prefix("10.96.0.0/16"),
		Nodes: []Node{{
			Name: "drain-control-plane", Role: ControlPlane, Via: []string{"tor2"},
			Links: []Link{{Network: "outside", Address: addr("10.4.36.11")}},
		}},
	})
	return lab
}

func TestContainerlabRoundTrip(t *testing.T) {
	tests := map[string]Topology{
		"node-drain": drain(),
		"awkward":    awkward(),
		"empty":      {Name: "empty"},
	}
	for name, lab := range tests {
		t.Run(name, func(t *testing.T) {
			data := export(t, lab)
			got, err := ImportContainerlab(bytes.NewReader(data))
			if err != nil {
				t.Fatalf("%v\n%s", err, data)
			}
			if diff := cmp.Diff(lab, got, compare); diff != "" {
				t.Errorf("after export and import (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExportContainerlabInvalid(t *testing.T) {
	lab := drain()
	lab.Clusters[0].ASN = 0
	var b bytes.Buffer
	var invalid *InvalidError
	if err := lab.ExportContainerlab(&b); !errors.As(err, &invalid) || b.Len() > 0 {
		t.Errorf("ExportContainerlab() = %v and wrote %d bytes, want an *InvalidError and nothing", err, b.Len())
	}
}

func TestExportContainerlabFailingWriter(t *testing.T) {
	closed, err := os.Open(os.DevNull) // not open for writing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed.Close() })
	if err := drain().ExportContainerlab(closed); err == nil || !strings.Contains(err.Error(), `writing topology "node-drain"`) {
		t.Errorf("ExportContainerlab() = %v", err)
	}
}

func TestImportContainerlabErrors(t *testing.T) {
	file := string(export(t, drain()))
	swap := func(old, new string) string {
		if !strings.Contains(file, old) {
			t.Fatalf("%q is not in the file:\n%s", old, file)
		}
		return strings.Replace(file, old, new, 1)
	}
	tests := []struct{ name, file string }{
		{"empty", ""},
		{"only a comment", "# nothing\n"},
		{"not YAML", "name: x\ntopology: [\n"},
		{"two documents", file + "---\nname: x\n"},
		{"a list", "- 1\n"},
		{"nothing in it", "name: x\n"},
		{"somebody else's", "name: x\ntopology:\n  nodes:\n    srl:\n      kind: nokia_srlinux\n"},
		{"misspelt field", swap("  nodes:", "  node:")},
		{"a field that would be lost", swap("network-mode: none", "network-mode: none\n      user: root")},
		{"duplicate node", swap("    outside:\n", "    rack:\n")},
		{"unknown type", swap("relapse.dev/type: router", "relapse.dev/type: routr")},
		{"wrong kind", swap("kind: bridge", "kind: ovs-bridge")},
		{"AS 0", swap(`relapse.dev/asn: "64513"`, `relapse.dev/asn: "0"`)},
		{"not an AS", swap(`relapse.dev/asn: "64513"`, `relapse.dev/asn: many`)},
		{"not a prefix", swap(`relapse.dev/subnet: 10.4.94.0/24`, `relapse.dev/subnet: 10.4.94.0/240`)},
		{"wrong length", swap(`ipv4: 10.4.94.32/24`, `ipv4: 10.4.94.32/16`)},
		{"address outside", swap(`ipv4: 10.4.94.32/24`, `ipv4: 10.4.95.32/24`)},
		{"unknown link end", swap(`node: drain-worker3`, `node: drain-worker4`)},
		{"link to a cluster", swap(`node: drain-worker3`, `node: drain`)},
		{"interface given twice", swap("interface: r470002-4", "interface: r470002-4\n          interface: eth9")},
		{"not an interface", swap("interface: eth0", "interface: ens3")},
		{"unknown cluster", swap(`relapse.dev/cluster: drain`, `relapse.dev/cluster: train`)},
		{"unknown label", swap(`relapse.dev/cluster: drain`, `relapse.dev/clutser: drain`)},
		{"peers", swap(`relapse.dev/peers: rack:64513`, `relapse.dev/peers: rack`)},
		{"alias", swap("startup-config: |", "startup-config: *x\n      image: |")},
		{"several", strings.NewReplacer(`"64513"`, `"0"`, "via: tor1,tor2", "via: tor1,tor3").Replace(file)},
	}
	var all strings.Builder
	for _, tt := range tests {
		_, err := ImportContainerlab(strings.NewReader(tt.file))
		var invalid *InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%s: ImportContainerlab() = %v, want an *InvalidError", tt.name, err)
		}
		fmt.Fprintf(&all, "%s\n  %v\n", tt.name, err)
	}
	checkGolden(t, "import-errors.txt", all.String())
}

func FuzzImportContainerlab(f *testing.F) {
	f.Add(export(f, drain()))
	f.Add(export(f, awkward()))
	f.Add([]byte("name: x\ntopology:\n  nodes:\n    a: &a {kind: bridge, labels: {relapse.dev/type: network}}\n    b: *a\n  links: [{endpoints: [~, {node: a}]}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		lab, err := ImportContainerlab(bytes.NewReader(data))
		if err != nil {
			return
		}
		// What was read is valid, and can be written and read again.
		again, err := ImportContainerlab(bytes.NewReader(export(t, lab)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(lab, again, compare); diff != "" {
			t.Errorf("after export and import (-want +got):\n%s", diff)
		}
	})
}
