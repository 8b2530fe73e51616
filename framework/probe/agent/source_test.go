package agent

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/relapse-dev/relapse/topology/must"
)

// Flows to two destinations never have one source port, and no port comes again before all
// others of its destination were used: one destination may stand for the other.
func TestDestinationsShareNoSourcePort(t *testing.T) {
	g := NewWithT(t)
	far := must.Get(Open(netip.MustParseAddrPort("127.0.0.2:0"), false))(t)
	defer far.Close()
	agent := must.Get(Open(netip.MustParseAddrPort("0.0.0.0:0"), false))(t)
	defer agent.Close()
	to := map[string]netip.AddrPort{
		"tcp4": netip.MustParseAddrPort(far.families[0].connect.Addr().String()), "udp4": netip.MustParseAddrPort("127.0.0.3:7"),
	}
	of := map[int]string{}
	for range 300 {
		for network, to := range to {
			conn := must.Get(agent.dial(t.Context(), network, to))(t)
			conn.Close()
			port := int(netip.MustParseAddrPort(conn.LocalAddr().String()).Port())
			g.Expect(of).NotTo(HaveKey(port), "%s uses the port again", network)
			of[port] = network
		}
	}
}
