package archive

import (
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

func marked() scanner {
	return scanner{
		ip: func(a netip.Addr, bits int) netip.Addr {
			return netip.MustParseAddr(map[bool]string{true: "203.0.113.1", false: "2001:db8::1"}[a.Is4()])
		},
		mac:   func(net.HardwareAddr) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, 1} },
		words: map[string]string{"node1": "node-x1", "probe-node1": "pod-x1", "0x11e140a": "0x1"},
	}
}

func TestText(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"alone", "10.4.94.21", "203.0.113.1"},
		{"in a sentence", "via 10.4.94.21.", "via 203.0.113.1."},
		{"with a port", "10.4.94.21:179->10.4.94.22:80", "203.0.113.1:179->203.0.113.1:80"},
		{"with a length", "10.5.112.0/21 dev eth0", "203.0.113.1/21 dev eth0"},
		{"a version", "cilium 1.11.6, v1.2.3.4, 1.2.3.4.5", "cilium 1.11.6, v1.2.3.4, 1.2.3.4.5"},
		{"no address", "300.1.1.1 1.2.3", "300.1.1.1 1.2.3"},
		{"IPv6", "fe80::42:aff:fe04:5e15%eth0 and [fd00::2]:80", "2001:db8::1%eth0 and [2001:db8::1]:80"},
		{"behind an IPv6 address", "src fd00::2: unreachable", "src 2001:db8::1: unreachable"},
		{"no IPv6 address", "std::string 12:34:56 cafe:12", "std::string 12:34:56 cafe:12"},
		{"MAC", "link/ether 02:42:0a:14:1c:0b brd", "link/ether 02:00:00:00:00:01 brd"},
		{"MAC in C", "{.addr = {0x2,0x42,0xa,0x14,0x1c,0xb}}", "{.addr = {0x2,0x0,0x0,0x0,0x0,0x1}}"},
		{"other bytes in C", "{ 0x0, 0x0, 0xff }", "{ 0x0, 0x0, 0xff }"},
		{"a word", "node1 node10 node1's kube-node1", "node-x1 node10 node-x1's kube-node-x1"},
		{"the longest word", "probe-node1 and node1", "pod-x1 and node-x1"},
		{"a number", "IPV4_GATEWAY 0x11e140a", "IPV4_GATEWAY 0x1"},
		{"escaped", `metadata.name%3Dnode1 \"node1\nnode1 \u003cnode1`, `metadata.name%3Dnode-x1 \"node-x1\nnode-x1 \u003cnode-x1`},
		{
			// {"gateway":"10.4.94.21","node":"node1","padding":"padding"}
			"encoded", "// eyJnYXRld2F5IjoiMTAuNC45NC4yMSIsIm5vZGUiOiJub2RlMSIsInBhZGRpbmciOiJwYWRkaW5nIn0=",
			"// eyJnYXRld2F5IjoiMjAzLjAuMTEzLjEiLCJub2RlIjoibm9kZS14MSIsInBhZGRpbmciOiJwYWRkaW5nIn0=",
		},
		{"nothing", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) { must.Equal(t, "", test.want, marked().text(test.text)) })
	}
}

// Keys of a format stay, a map's do not, and all else is as it was, to the byte.
func TestJSON(t *testing.T) {
	d := NewDictionary()
	d.Name("node", "node1", "worker")
	d.Name("host", "outside")
	d.chosen = true
	const text = "{\n \"outside\": [ {\"host\":\"outside\",\"role\": \"worker\", \"name\":\"worker\"} ],\n" +
		" \"annotations\": {\"node1\": \"a\\n \\u003e\", \"n\": 1.50},\"probe\":\"outside->node1\" }\n"
	const want = "{\n \"outside\": [ {\"host\":\"host-x1\",\"role\": \"worker\", \"name\":\"node-x2\"} ],\n" +
		" \"annotations\": {\"node-x1\": \"a\\n \\u003e\", \"n\": 1.50},\"probe\":\"host-x1->node-x1\" }\n"
	must.Equal(t, "it", want, string(d.JSON([]byte(text))))
}

func ours() *addresses { return newAddresses([]byte("key")) }

// Two addresses have as many leading bits in common as before, up to the last byte, which stays.
func TestPrefixesAreKept(t *testing.T) {
	a := ours()
	random := rand.New(rand.NewPCG(1, 2))
	some := func() netip.Addr {
		x := random.Uint32()
		if random.IntN(2) == 0 {
			x = x&0xfff | 0x0a057000 // many of them alike
		}
		return netip.AddrFrom4([4]byte{byte(x >> 24), byte(x >> 16), byte(x >> 8), byte(x)})
	}
	for range 300 {
		x, y := some(), some()
		p, q := a.to(x, -1), a.to(y, -1)
		if got, want := min(24, common(p, q)), min(24, common(x, y)); got != want {
			t.Fatalf("%s and %s have %d bits in common, and %s and %s in their place %d", x, y, want, p, q, got)
		}
		if x.As4()[3] != p.As4()[3] {
			t.Fatalf("%s is %s", x, p)
		}
	}
}

func common(x, y netip.Addr) int {
	n := 0
	for ; n < x.BitLen(); n++ {
		p, _ := x.Prefix(n + 1)
		if !p.Contains(y) {
			break
		}
	}
	return n
}

func TestAddressesThatStay(t *testing.T) {
	a := ours()
	for _, text := range []string{"0.0.0.0", "127.0.0.1", "169.254.169.254", "224.0.0.5", "255.255.255.0", "::1", "::", "ff02::1"} {
		must.Equal(t, "", netip.MustParseAddr(text), a.to(netip.MustParseAddr(text), -1))
	}
	for text, head := range map[string]string{
		"10.5.112.9": "10.0.0.0/8", "172.18.0.2": "172.16.0.0/12", "192.168.7.1": "192.168.0.0/16", "fd00:10:244::5": "fc00::/7", "fe80::42:aff:fe04:5e15": "fe80::/10",
	} {
		if got := a.to(netip.MustParseAddr(text), -1); !netip.MustParsePrefix(head).Contains(got) {
			t.Errorf("%s is %s, which is not of %s", text, got, head)
		}
	}
	got := a.to(netip.MustParseAddr("fe80::42:aff:fe04:5e15"), -1)
	must.Equal(t, got, false, strings.Contains(got.String(), "42:aff")) // of its MAC address
}

func FuzzText(f *testing.F) {
	f.Add("10.4.94.21/24 fe80::1 02:42:0a:14:1c:0b node1 0x1, %3D \\n")
	f.Fuzz(func(t *testing.T, text string) {
		marked().text(text) // it ends, whatever the text
		NewDictionary().JSON([]byte(text))
		NewDictionary().Snapshot([]byte(text))
	})
}

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

// Numbers, times, versions and well-known words of a snapshot stay.
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

// A report's command keeps the values of harmless flags alone, and its origins keep public registries.
func TestWithoutPlaces(t *testing.T) {
	r := withoutPlaces(report.Report{
		Scenario: "node-drain",
		Command:  "relapse run node-drain --variant=old --on=/home/jane/lab --upstream=docker.io=https://mirror.acme.example '--set=a=b c' --with=cilium=1.11.4",
		Origins:  map[string]string{"a": report.Built, "b": "https://mirror.acme.example", "c": "registry.k8s.io@sha256:12"},
	})
	must.Equal(t, "the command", "relapse run node-drain --variant=old --on --upstream --set --with=cilium=1.11.4", r.Command)
	must.Equal(t, "origins", map[string]string{"a": report.Built, "b": "a mirror", "c": "registry.k8s.io@sha256:12"}, r.Origins)
}
