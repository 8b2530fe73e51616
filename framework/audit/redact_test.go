package audit

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

// fill sets each string in a value to a unique name, which it notes by the field's path, and addresses to one of few.
func fill(v reflect.Value, path string, texts map[string]string) {
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr(fmt.Sprintf("10.77.%d.9", len(texts)%200))))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.MustParseAddrPort("[fd77:1:2:3::9]:80")))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("fd77:5::/48")))
		return
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		texts[path] = fmt.Sprintf("canary%d", len(texts))
		v.SetString(texts[path])
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				fill(v.Field(i), path+"."+f.Name, texts)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), path, texts)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, path+"[key]", texts)
		fill(value, path+"[value]", texts)
		v.SetMapIndex(key, value)
	}
}

// Texts in all fields of a read are replaced, and addresses everywhere.
func TestRedactFields(t *testing.T) {
	texts := map[string]string{}
	var s snapshot.Snapshot
	fill(reflect.ValueOf(&s).Elem(), "", texts)
	x := must.Get(Redact([]snapshot.Snapshot{s}, Result{}, nil, nil))(t)
	reads := must.Get(x.Reads([]snapshot.Snapshot{s}))(t)
	text := must.Get(json.Marshal(reads[0]))(t)
	for path, secret := range texts {
		must.Equal(t, "left of "+path, 0, strings.Count(string(text), secret+`"`))
	}
	// A replacement may begin like an address of the read by chance.
	own := must.Get(json.Marshal(s))(t)
	addresses := regexp.MustCompile(`\b(?:10\.77\.\d+\.9|fd77:1:2:3::9|fd77:5::)`).FindAllString(string(own), -1)
	must.Equal(t, addresses, true, len(addresses) >= 3) // one of each kind
	for _, address := range slices.Compact(slices.Sorted(slices.Values(addresses))) {
		must.Equal(t, address, false, regexp.MustCompile(`\b`+regexp.QuoteMeta(address)+`(?:\D|$)`).Match(text))
	}
}

// Names and addresses in texts are replaced as well, in any notation.
func TestRedactTexts(t *testing.T) {
	s := cluster(false)
	s.Nodes.Items[0].InternalIPs = append(s.Nodes.Items[0].InternalIPs, netip.MustParseAddr("2001:db8:9::21"))
	s.NodeNetworks = []snapshot.NodeNetwork{{Node: "master1", BIRD: snapshot.List[snapshot.BIRDProtocol]{Read: true, Items: []snapshot.BIRDProtocol{
		{Name: "Mesh_10_4_94_32"}, {Name: "Mesh_2001_db8_9__21"}, {Name: "fd-2001-db8-9--21"}, {LastError: "2001:DB8:9:0:0:0:0:21 and 2001:0db8:0009::0021"},
	}}}}
	s.CalicoAgents.Items = []snapshot.CalicoAgent{{Node: "master1", Pod: "kube-system/calico", Method: "can-reach=gate.corp.example"}}
	s.ConfigMaps = snapshot.List[snapshot.ConfigMap]{Read: true, Items: []snapshot.ConfigMap{{Namespace: "kube-system", Name: "cilium-config", Data: map[string]string{
		"cluster-name": "plant7", "kvstore-opt": "{\"etcd.config\": \"https://etcd.corp.example:2379\"}", "k8s-service-host": "api.corp.example",
	}}}}
	s.NAT = []snapshot.NodeNAT{{Node: "master1", Rules: snapshot.List[snapshot.Rule]{Read: true, Items: []snapshot.Rule{
		{Chain: "ACME-NAT", Comment: "for acme, by alice", Text: "-A ACME-NAT -s 10.4.94.32 -m comment --comment \"for acme, by alice\" -j MASQUERADE"},
		{Chain: "KUBE-SERVICES", Comment: "kubernetes service portals"},
	}}}}
	for what, text := range map[string]string{
		"certificate": `Get "https://10.4.94.32:6443/api": tls: failed to verify certificate: x509: certificate is valid for kubernetes, vip.corp.example, 10.96.0.1, not api2.corp.example`,
		"file":        "/home/alice/rib.mrt: the MRT dump is cut off",
		"command":     "running docker exec edge-of-acme vtysh -c 'show bgp ipv4 unicast json': exit status 1",
		"ssh":         "running ssh -T -- router7 'vtysh -c x': exit status 255: ssh: Could not resolve hostname router7.plant: Name or service not known",
	} {
		s.Routers = append(s.Routers, snapshot.Router{Name: "r-" + what, Paths: snapshot.List[snapshot.Path]{Error: text}})
	}
	x, err := Redact([]snapshot.Snapshot{s}, Result{}, []bgprouter.Declared{{Name: "tor1", Kind: bgprouter.MRT, File: "/srv/acme/rib"}, {Name: "tor2", Kind: bgprouter.FRR, Files: map[string]string{"bgp4": "/srv/umbrella/bgp"}}}, []string{"nodes-of-acme.yaml"})
	must.NoError(t, err)
	reads := must.Get(x.Reads([]snapshot.Snapshot{s}))(t)
	read := must.Get(json.Marshal(reads[0]))(t)
	all := string(read) + x.Text("open /srv/acme/rib, /srv/umbrella/bgp: no such file; pod a does not take the key of nodes-of-acme.yaml")
	// A replacement may begin like an address of the read by chance.
	for _, secret := range []string{
		"10.4.94.32", "10_4_94_32", "2001_db8_9__", "2001-db8-9--", "2001:DB8:9:", "2001:0db8:0009:", "corp.example", "plant", "acme", "ACME", "alice", "router7", "master1", "tor1", "umbrella",
	} {
		if i := strings.Index(all, secret); i >= 0 {
			t.Errorf("%q is left: %s", secret, all[max(0, i-80):min(len(all), i+80)])
		}
	}
	must.Contain(t, all, "KUBE-SERVICES", "kubernetes service portals", "kube-system")
}

// Redacted output has no original ID of a finding: names could be guessed by it.
func TestRedactIDs(t *testing.T) {
	f := detect.Finding{Detector: "image-pin", Kind: "latest-tag", State: detect.Latent, Object: detect.Named("DaemonSet shop/a, container a")}
	r := Result{Findings: []Finding{identified(f)}}
	at := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	r.Suppress([]Suppression{
		{ID: r.Findings[0].ID, Reason: "r", Expires: "2025-01-01"}, {ID: "2edadcd36f84", Reason: "r", Expires: "2025-01-01", Routers: []string{"tor1"}}, {ID: "3edadcd36f84", Reason: "r", Expires: "2027-01-01", Routers: []string{"tor7"}},
		{Detector: "image-pin", Kind: "*", Object: "DaemonSet vault/acme*", Reason: "r", Expires: "2027-01-01"},
		{Detector: "image-pin", Kind: "*", Object: "DaemonSet plant/x", Reason: "r", Expires: "2025-01-01"},
	}, at)
	x := must.Get(Redact([]snapshot.Snapshot{cluster(false)}, r, nil, nil))(t)
	to := must.Get(x.Result(r))(t)
	text := string(must.Get(json.Marshal(to))(t))
	for _, secret := range []string{"2edadcd36f84", "3edadcd36f84", "tor1", "tor7", "vault", "acme", "plant"} {
		must.Equal(t, secret+" in "+text, 0, strings.Count(text, secret))
	}
	must.Equal(t, to.Findings, [...]int{4, 2}, [...]int{len(to.Findings), len(to.Unused)})
	must.Equal(t, "one ID for two", false, to.Findings[1].ID == to.Findings[2].ID)
}
