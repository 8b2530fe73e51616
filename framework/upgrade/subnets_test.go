package upgrade

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/framework"
)

// An upgrade on other subnets is declared on them for every pair of versions, and its
// endpoints outside the pods answer there.
func TestWithin(t *testing.T) {
	prefix, services := netip.MustParsePrefix("10.200.0.0/16"), netip.MustParsePrefix("10.96.0.0/16")
	for _, d := range declaredUpgrades {
		component := d.component
		u := declared(t, component, d.from, d.to, Settings{Subnets: prefix})
		if err := u.Topology.Validate(); err != nil {
			t.Errorf("%s: %v", component, err)
		}
		for _, m := range u.Topology.Members() {
			for _, l := range m.Links {
				if !prefix.Contains(l.Address) {
					t.Errorf("%s: %s has %s on %s", component, m.Name, l.Address, l.Network)
				}
			}
		}
		r := &framework.Run{Topology: u.Topology}
		if tor := r.Address(tor); tor.String() != "10.200.0.254" || u.Topology.Routers[0].ID != tor {
			t.Errorf("%s: the ToR has %s, and the ID %s", component, tor, u.Topology.Routers[0].ID)
		}
		for _, e := range u.Ends {
			if e.Address == nil {
				continue
			}
			// MetalLB chooses the address of its Service in the lab.
			if at := e.Address(r); at.IsValid() && !prefix.Contains(at.Addr()) && !services.Contains(at.Addr()) {
				t.Errorf("%s: %s answers at %s", component, e.Name, at)
			}
		}
		if _, err := Of(component, d.from, d.to, Settings{Subnets: u.Topology.Clusters[0].PodCIDR}); err == nil {
			t.Errorf("%s: its networks are moved into its own pod range", component)
		}
	}
}
