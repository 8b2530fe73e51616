package bgprouter

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestShow(t *testing.T) {
	const frr, bird, kernel = "vtysh -c 'show bgp ipv4 unicast 10.5.115.0/24'", "birdc -r 'show route 10.5.115.0/24 all'", "ip -4 route show to exact 10.5.115.0/24"
	for _, test := range []struct {
		name   string
		router Declared
		prefix string
		want   []string
	}{
		{"by a command", Declared{Kind: BIRD, Command: []string{"docker", "exec", "tor 2"}}, "10.5.115.0/24", []string{"docker exec 'tor 2' " + bird, "docker exec 'tor 2' " + kernel}},
		{"by ssh", Declared{Kind: FRR, SSH: "ops@tor1"}, "10.5.115.0/24",
			[]string{`ssh ops@tor1 'vtysh -c '"'"'show bgp ipv4 unicast 10.5.115.0/24'"'"''`, "ssh ops@tor1 '" + kernel + "'"}},
		{"by sudo", Declared{Kind: BIRD, Command: []string{"docker", "exec", "tor2"}, Become: "sudo"}, "10.5.115.0/24", []string{"docker exec tor2 sudo -n " + bird, "docker exec tor2 sudo -n " + kernel}},
		{"known by its name alone", Declared{Name: "tor1"}, "10.5.115.0/24", []string{frr, bird, kernel}},
		{"IPv6", Declared{Kind: FRR, SSH: "a"}, "fd00:1::/64", []string{`ssh a 'vtysh -c '"'"'show bgp ipv6 unicast fd00:1::/64'"'"''`, "ssh a 'ip -6 route show to exact fd00:1::/64'"}},
		{"a route server", Declared{Kind: FRR, Command: []string{"a"}, Role: "route-server"}, "10.5.115.0/24", []string{"a " + frr}},
		{"by gRPC with TLS", Declared{Kind: GoBGP, Address: "[fd00::1]:50051", CA: "ca.pem", Cert: "a.pem", Key: "a.key", SSH: "ops@a"}, "fd00:1::/64",
			[]string{
				"gobgp --host=fd00::1 --port=50051 --tls --tls-ca-file=ca.pem --tls-client-cert-file=a.pem --tls-client-key-file=a.key global rib fd00:1::/64 --address-family=ipv6",
				"ssh ops@a 'ip -6 route show to exact fd00:1::/64'",
			}},
		{"a dump", Declared{Kind: MRT, File: "rib 1.mrt"}, "10.5.115.0/24", []string{`sh -c 'bgpdump -m '"'"'rib 1.mrt'"'"' | grep -F '"'"'|10.5.115.0/24|'"'"''`}},
		{"by BMP", Declared{Kind: BMP, Address: "192.0.2.1"}, "10.5.115.0/24", []string{frr, bird, kernel}},
		{"by gRPC alone", Declared{Kind: GoBGP, Address: "a:1", Plaintext: true}, "10.5.115.0/24", []string{"gobgp --host=a --port=1 global rib 10.5.115.0/24 --address-family=ipv4"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			must.Equal(t, "", test.want, Show(test.router, netip.MustParsePrefix(test.prefix)))
		})
	}
}

// Each kind of a file has a command.
func TestEveryKindIsShown(t *testing.T) {
	for _, kind := range kinds {
		if shows[Kind(kind)] == nil && Kind(kind) != BMP { // BMP is not the router's program
			t.Errorf("nothing shows the RIB of kind %s", kind)
		}
	}
}
