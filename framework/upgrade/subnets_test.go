package upgrade

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/must"
)

// An upgrade on other subnets is declared on them for every pair of versions, and its
// endpoints outside the pods answer there.
func TestWithin(t *testing.T) {
	prefix, services := netip.MustParsePrefix("10.200.0.0/16"), netip.MustParsePrefix("10.96.0.0/16")
	for _, d := range declaredUpgrades {
		u := declared(t, d.component, d.from, d.to, Settings{Subnets: prefix})
		must.NoError(t, u.Topology.Validate())
		for _, m := range u.Topology.Members() {
			for _, l := range m.Links {
				must.Equal(t, l, true, prefix.Contains(l.Address))
			}
		}
		r := &framework.Run{Topology: u.Topology}
		of := [...]string{r.Address(tor).String(), u.Topology.Routers[0].ID.String()}
		must.Equal(t, "address and ID of the ToR", [...]string{"10.200.0.254", "10.200.0.254"}, of)
		for _, e := range u.Ends {
			if e.Address == nil || !e.Address(r).IsValid() { // MetalLB chooses the address of its Service in the lab
				continue
			}
			at := e.Address(r).Addr()
			must.Equal(t, e.Name, true, prefix.Contains(at) || services.Contains(at))
		}
		own := Settings{Subnets: u.Topology.Clusters[0].PodCIDR}
		must.Fail(t, must.Err(Of(d.component, d.from, d.to, own)), "pod range")
	}
}
