package topology_test

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestFamilies(t *testing.T) {
	address, prefix := netip.MustParseAddr("10.66.4.11"), netip.MustParsePrefix("10.66.64.0/20")
	for _, test := range []struct {
		dual            bool
		addrs, prefixes string
	}{
		{false, "10.66.4.11", "10.66.64.0/20"},
		{true, "10.66.4.11,fd5c:3f1e:a2d7::a42:40b", "10.66.64.0/20,fd5c:3f1e:a2d7::a42:4000/116"},
	} {
		lab := topology.Topology{Dual: test.dual}
		must.Equal(t, "addresses", test.addrs, lab.Addrs(address))
		must.Equal(t, "prefixes", test.prefixes, lab.Prefixes(prefix))
	}
	if v6 := topology.IPv6.Prefix(prefix); v6 != v6.Masked() || topology.IPv6.Prefix(v6) != v6 {
		t.Errorf("%s has host bits, or moves", v6)
	}
}
