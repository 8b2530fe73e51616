package archive

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// Words of snapshots are replaced by the same words everywhere, and addresses stay in their ranges.
func TestDictionary(t *testing.T) {
	ip := netip.MustParseAddr("10.5.115.7")
	one := snapshot.Snapshot{Sources: []snapshot.Asked{{Name: "routers"}, {Name: "Nodes"}}}
	one.Nodes = snapshot.List[snapshot.Node]{Read: true, Items: []snapshot.Node{{Name: "master1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.5.115.0/24")}}}}
	one.Pods = snapshot.List[snapshot.Pod]{Read: true, Items: []snapshot.Pod{{Namespace: "shop", Name: "web", Node: "master1", IP: ip}}}
	one.Routers = []snapshot.Router{{Name: "tor1"}}
	text := must.Get(json.Marshal(one))(t)
	d := NewDictionary()
	d.Snapshot(text)
	d.Text("also 192.0.2.1")
	_, _, err := d.Choose()
	must.NoError(t, err)
	text = d.Snapshot(text)
	for _, secret := range []string{"master1", "tor1", "web", "shop", "10.5.115"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%q is in %s", secret, text)
		}
	}
	var got snapshot.Snapshot
	must.NoError(t, json.Unmarshal(text, &got))
	pod := got.Pods.Items[0]
	if !got.Nodes.Items[0].PodCIDRs[0].Contains(pod.IP) || pod.Node != got.Nodes.Items[0].Name || got.Routers[0].Name != "router-x1" || got.Sources[0].Name != "routers" {
		t.Errorf("%s", text)
	}
	must.Equal(t, "", "router-x1 has "+pod.IP.String()+", on "+pod.Node, d.Text("tor1 has 10.5.115.7, on master1"))
	must.Equal(t, "", `{"master1": "`+pod.Node+`", "kind": "web"}`, string(d.Values([]byte(`{"master1": "master1", "kind": "web"}`))))
}

// Of a snapshot numbers, times, versions and words that are the same everywhere stay.
func TestWordsThatStay(t *testing.T) {
	for text, want := range map[string]string{
		"42": "42", "true": "true", "10m30s": "10m30s", "v1.19.5": "v1.19.5", "2026-01-02T03:04:05.6Z": "2026-01-02T03:04:05.6Z", "up|broadcast": "up|broadcast",
		"kube-system/cilium-config": "kube-system/cilium-config", "enable-ipv4-masquerade": "enable-ipv4-masquerade",
		"quay.io/cilium/cilium:v1.12.0": "quay.io/cilium/cilium:v1.12.0", "registry.acme.example/shop/cart:v1": "name-x1/name-x2/name-x3:v1",
		"registry.acme.example/cilium@sha256:12": "name-x1/cilium@sha256:12", "CiliumNodes": "CiliumNodes", "list on ipamblocks in crd.projectcalico.org": "list on ipamblocks in crd.projectcalico.org",
		"listing Nodes: connection refused": "listing Nodes: connection refused", "ssh: connect to host router port 22: refused": "ssh: connect to host host-x1 port 22: refused",
		"7f3b2c1d-0000-4000-8000-00000000000a": "name-x1", "Gebäude-7": "name-x1", "for acme, by alice": "for name-x1, by name-x2", "1.2.3-acme": "name-x1",
	} {
		d := NewDictionary()
		must.Equal(t, text, want, d.strictly(text, "name", false))
	}
}

// Of a report's command the scenario and harmless flags stay, and of origins what everybody has.
func TestWithoutPlaces(t *testing.T) {
	r := withoutPlaces(report.Report{
		Scenario: "node-drain",
		Command:  "relapse run node-drain --variant=old --on=/home/jane/lab --upstream=docker.io=https://mirror.acme.example '--set=a=b c' --with=cilium=1.11.4",
		Origins:  map[string]string{"a": report.Built, "b": "https://mirror.acme.example", "c": "registry.k8s.io@sha256:12"},
	})
	must.Equal(t, "the command", "relapse run node-drain --variant=old --on --upstream --set --with=cilium=1.11.4", r.Command)
	must.Equal(t, "origins", map[string]string{"a": report.Built, "b": "a mirror", "c": "registry.k8s.io@sha256:12"}, r.Origins)
}
