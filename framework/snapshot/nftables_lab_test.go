//go:build lab

package snapshot

import (
	"context"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// proxyRules are of kube-proxy 1.34.4, with a Service of two endpoints, one with session affinity, and one of IPv6; and
// of 1.36.3, which needs no chain for an endpoint.
const proxyRules = `
table ip kube-proxy {
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	set affinity { type ipv4_addr; flags dynamic, timeout; timeout 3h; }
	chain mark-for-masquerade { mark set mark or 0x4000; }
	chain endpoint-a { ip saddr 10.1.1.2 jump mark-for-masquerade
		meta l4proto tcp dnat to 10.1.1.2:8080; }
	chain endpoint-b { ip saddr 10.1.2.2 jump mark-for-masquerade
		update @affinity { ip saddr }
		meta l4proto tcp dnat to 10.1.2.2:8080; }
	chain service-two { ip daddr 10.96.0.10 tcp dport 80 ip saddr != 10.1.0.0/16 jump mark-for-masquerade
		numgen random mod 2 vmap { 0 : goto endpoint-a, 1 : goto endpoint-b }; }
	chain service-affinity { ip saddr @affinity goto endpoint-b
		numgen random mod 1 vmap { 0 : goto endpoint-b }; }
	chain service-new { meta l4proto udp dnat ip addr . port to numgen random mod 2 map { 0 : 10.1.1.3 . 53, 1 : 10.1.2.3 . 5353 }; }
	chain service-none { }
}
add element ip kube-proxy service-ips { 10.96.0.10 . tcp . 80 : goto service-two }
add element ip kube-proxy service-ips { 10.96.0.11 . tcp . 80 : goto service-affinity }
add element ip kube-proxy service-ips { 10.96.0.12 . udp . 53 : goto service-new }
add element ip kube-proxy service-ips { 10.96.0.13 . sctp . 9 : goto service-none }
table ip6 kube-proxy {
	map service-ips { type ipv6_addr . inet_proto . inet_service : verdict; }
	chain endpoint-six { meta l4proto tcp dnat to [fd00:1::2]:8080; }
	chain service-six { numgen random mod 1 vmap { 0 : goto endpoint-six }; }
	chain service-new { meta l4proto udp dnat ip6 addr . port to numgen random mod 1 map { 0 : fd00:1::3 . 53 }; }
}
add element ip6 kube-proxy service-ips { fd00:96::a . tcp . 80 : goto service-six }
add element ip6 kube-proxy service-ips { fd00:96::b . udp . 53 : goto service-new }
`

func TestServicesOfNFTables(t *testing.T) {
	n := newOwnNode(t)
	m := fakeMachine{netns: func(context.Context) (string, error) { return "/proc/" + strconv.Itoa(n.pid) + "/ns/net", nil }}
	if found := must.Get(nftServices(t.Context(), m))(t); len(found) > 0 {
		t.Errorf("on a node without rules: %v", found)
	}
	load := n.command("nft", "-f", "-")
	load.Stdin = strings.NewReader(proxyRules)
	if said, err := load.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	got := map[string][]netip.AddrPort{}
	for _, v := range must.Get(nftServices(t.Context(), m))(t) {
		of := []netip.AddrPort{}
		for _, s := range v.Servers {
			of = append(of, s.Address)
		}
		got[v.Protocol+" "+v.Address.String()] = of
	}
	at := netip.MustParseAddrPort
	must.Equal(t, "Services", map[string][]netip.AddrPort{
		"TCP 10.96.0.10:80": {at("10.1.1.2:8080"), at("10.1.2.2:8080")}, "TCP 10.96.0.11:80": {at("10.1.2.2:8080")},
		"UDP 10.96.0.12:53": {at("10.1.1.3:53"), at("10.1.2.3:5353")}, "SCTP 10.96.0.13:9": {},
		"TCP [fd00:96::a]:80": {at("[fd00:1::2]:8080")}, "UDP [fd00:96::b]:53": {at("[fd00:1::3]:53")},
	}, got)
	n.run("nft", "add table inet guard")
	n.run("nft", "add set inet guard readable { type ifname; }")
	must.Equal(t, "sets of this nft", 0, len(must.Get(unreadableSets(t.Context(), m))(t)))
}
