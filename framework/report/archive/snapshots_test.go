package archive

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Snapshots of one cluster have the same replacements, which keep ranges in their ranges, and sources
// keep their names even if a namespace has one of them.
func TestReplace(t *testing.T) {
	ip := netip.MustParseAddr("10.5.115.7")
	one := snapshot.Snapshot{Sources: []snapshot.Asked{{Name: "routers"}, {Name: "Nodes"}}}
	one.Nodes = snapshot.List[snapshot.Node]{Read: true, Items: []snapshot.Node{{Name: "master1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.5.115.0/24")}}}}
	one.Pods = snapshot.List[snapshot.Pod]{Read: true, Items: []snapshot.Pod{{Namespace: "routers", Name: "web", Node: "master1", IP: ip}}}
	one.Routers = []snapshot.Router{{Name: "tor1"}}
	r, err := Replace([]snapshot.Snapshot{one}, map[string][]string{"router": {"tor1", "tor1"}}, "also 192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Snapshot(one)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"master1", "tor1", "web", "10.5.115"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%q is in %s", secret, text)
		}
	}
	pod := got.Pods.Items[0]
	if !got.Nodes.Items[0].PodCIDRs[0].Contains(pod.IP) || pod.Node != got.Nodes.Items[0].Name || got.Routers[0].Name != "router-x1" || got.Sources[0].Name != "routers" {
		t.Errorf("%s", text)
	}
	if says := r.Text("tor1 has 10.5.115.7, on master1"); says != "router-x1 has "+pod.IP.String()+", on "+pod.Node {
		t.Errorf("%q", says)
	}
	if says := string(r.JSON([]byte(`{"master1": "master1", "kind": "web"}`))); says != `{"master1": "`+pod.Node+`", "kind": "web"}` {
		t.Errorf("%s", says)
	}
}
