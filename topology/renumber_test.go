package topology

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// three is a topology with three networks of different sizes. One of them cannot move.
func three() Topology {
	small := NewNetwork("small", "10.9.8.0/25")
	large := NewNetwork("large", "10.9.6.0/23")
	fixed := NewNetwork("fixed", "10.9.9.0/24")
	fixed.Fixed = "it is the incident's"
	return Topology{
		Name: "three", Networks: []Network{small, fixed, large}, Routed: []netip.Prefix{prefix("10.9.12.0/24")},
		Clusters: []Cluster{{
			Name: "k8s", ASN: 64513, PodCIDR: prefix("10.10.0.0/16"), NodeMask: 24, ServiceCIDR: prefix("10.96.0.0/16"),
			Nodes: []Node{{Name: "master", Role: ControlPlane, Links: []Link{small.At("10.9.8.77"), fixed.At("10.9.9.11")}, Via: []string{"tor"}}},
		}},
		Routers: []Router{
			{Name: "tor", ASN: 64524, ID: netip.MustParseAddr("10.9.7.254"), Links: []Link{small.At("10.9.8.126"), large.At("10.9.7.254")}},
			{Name: "spine", ASN: 64525, ID: netip.MustParseAddr("192.0.2.1"), Links: []Link{large.At("10.9.6.2")}},
		},
		Hosts: []Host{{Name: "outside", Links: []Link{large.At("10.9.6.255")}, Via: []string{"tor"}}},
	}
}

func TestRenumber(t *testing.T) {
	old := three()
	must.NoError(t, old.Validate())
	moves := must.Get(old.Within(prefix("172.16.128.0/20")))(t)
	moved := old.Renumber(moves)
	must.NoError(t, moved.Validate())
	for at, want := range map[[2]string]string{
		{"master", "small"}:  "172.16.128.77",
		{"master", "fixed"}:  "10.9.9.11",
		{"tor", "small"}:     "172.16.128.126",
		{"tor", "large"}:     "172.16.131.254", // the next /23, not the next address
		{"spine", "large"}:   "172.16.130.2",
		{"outside", "large"}: "172.16.130.255",
	} {
		if got, _ := moved.AddressOn(at[0], at[1]); got.String() != want {
			t.Errorf("%s on %s is %s, want %s", at[0], at[1], got, want)
		}
	}
	if tor, spine := moved.Routers[0].ID.String(), moved.Routers[1].ID.String(); tor != "172.16.131.254" || spine != "192.0.2.1" {
		t.Errorf("router IDs %s and %s: one is an address that has moved, one is not", tor, spine)
	}
	if unchanged, _ := old.AddressOn("master", "small"); unchanged.String() != "10.9.8.77" {
		t.Errorf("the declaration itself was changed: %s", unchanged)
	}
	if c := moved.Clusters[0]; c.PodCIDR != old.Clusters[0].PodCIDR || c.ServiceCIDR != old.Clusters[0].ServiceCIDR {
		t.Errorf("the pod and Service ranges have moved: %s, %s", c.PodCIDR, c.ServiceCIDR)
	}
	// The subnets of a stored run make the same move.
	stored := map[string]netip.Prefix{
		"small": moves[0].To, "large": moves[1].To, "fixed": prefix("10.9.9.0/24"), "gone": prefix("10.0.0.0/8"),
	}
	must.Equal(t, "of a stored run", moves, must.Get(old.Onto(stored))(t))
	must.Fail(t, must.Err(old.Onto(map[string]netip.Prefix{"small": prefix("172.16.128.0/24")}))) // of another size
	none := must.Get(old.Onto(map[string]netip.Prefix{"small": old.Networks[0].Subnet}))(t)
	must.Equal(t, "moves to the documented subnets", 0, len(none))
}

func TestWithinRefuses(t *testing.T) {
	for prefix, says := range map[string]string{
		"10.200.0.0/22": "<nil>", // the /25, and the /23 after it
		"10.200.0.0/23": "10.200.0.0/23 is too small: the networks of three need a /22",
		"10.200.0.0/24": "10.200.0.0/24 is too small: the networks of three need a /22",
		"10.8.0.0/14":   "10.8.0.0/14 overlaps 10.10.0.0/16, the pod range of three, which stays: choose another prefix",
		"10.96.0.0/12":  "10.96.0.0/12 overlaps 10.96.0.0/16, the Service range of three, which stays: choose another prefix",
		"10.9.8.0/22":   `10.9.8.0/22 overlaps 10.9.9.0/24, the network "fixed" of three, which stays: choose another prefix`,
		"10.9.12.0/22":  "10.9.12.0/22 overlaps 10.9.12.0/24, a routed range of three, which stays: choose another prefix",
		"10.200.1.0/16": "10.200.1.0/16 has host bits: expected 10.200.0.0/16",
		"192.0.0.0/8":   "192.0.0.0/8 is not private: expected a prefix in 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16 (RFC 1918)",
		"198.51.0.0/16": "198.51.0.0/16 is not private: expected a prefix in 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16 (RFC 1918)",
		"fd00::/64":     "fd00::/64 is not an IPv4 prefix: expected one such as 10.200.0.0/16",
	} {
		must.Equal(t, prefix, says, fmt.Sprint(must.Err(three().Within(netip.MustParsePrefix(prefix)))))
	}
	none := three()
	none.Networks = none.Networks[1:2]
	must.Fail(t, must.Err(none.Within(prefix("10.200.0.0/16"))), "no network of three can move")
}

// Each topology gets a part, with which alone it makes the same move.
func TestSplit(t *testing.T) {
	one := Topology{Name: "one", Networks: []Network{NewNetwork("nodes", "10.1.0.0/24")}}
	all := []Topology{one, three(), one}
	parts := must.Get(Split(prefix("10.200.0.0/20"), all...))(t)
	for i, want := range []string{"10.200.0.0/24", "10.200.4.0/22", "10.200.8.0/24"} {
		must.Equal(t, i, want, parts[i].String())
		must.Get(all[i].Within(parts[i]))(t)
	}
	must.Equal(t, "", "10.200.0.0/21 is too small for 3 labs: no /24 is left for that of one",
		fmt.Sprint(must.Err(Split(prefix("10.200.0.0/21"), all...))))
	// The part of the first one overlaps nothing, and the prefix does.
	must.Fail(t, must.Err(Split(prefix("10.8.0.0/14"), one, three())), "the pod range of three")
}

func TestRenumberText(t *testing.T) {
	moves := Renumbering{{Network: "nodes", From: prefix("10.4.94.0/24"), To: prefix("172.16.100.0/24")}}
	for text, want := range map[string]string{
		"nodes 10.4.94.0/24, pods 10.5.112.0/21": "nodes 172.16.100.0/24, pods 10.5.112.0/21",
		"from 10.4.94.1 to 10.4.95.1":            "from 172.16.100.1 to 10.4.95.1",
		"db 10.4.94.10       neighbour":          "db 172.16.100.10    neighbour",
		"db 10.4.94.10  neighbour":               "db 172.16.100.10  neighbour",
		"version 10.4.94.1000, 1.12.5":           "version 10.4.94.1000, 1.12.5",
		"(10.4.94.23)":                           "(172.16.100.23)",
	} {
		must.Equal(t, text, want, moves.Text(text))
	}
}
