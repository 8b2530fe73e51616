package bgp

import (
	"testing"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/osrg/gobgp/v3/pkg/packet/bmp"

	"github.com/relapse-dev/relapse/topology/must"
)

// The End-of-RIB of IPv4 does not stand for that of IPv6.
func TestEndOfOneFamily(t *testing.T) {
	f := NewFeed()
	h := *bmp.NewBMPPeerHeader(bmp.BMP_PEER_TYPE_GLOBAL, bmp.BMP_PEER_FLAG_POST_POLICY, 0, "192.0.2.2", 64513, "192.0.2.9", 1767323045)
	caps := []bgp.OptionParameterInterface{bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{
		bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC), bgp.NewCapMultiProtocol(bgp.RF_IPv6_UC)})}
	open := bgp.NewBGPOpenMessage(64513, 90, "192.0.2.9", caps)
	for _, m := range []*bmp.BMPMessage{
		bmp.NewBMPPeerUpNotification(h, "192.0.2.1", 179, 40000, open, open),
		bmp.NewBMPRouteMonitoring(h, bgp.NewBGPUpdateMessage(nil, nil, nil)), // End-of-RIB of IPv4
		bmp.NewBMPRouteMonitoring(h, bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{
			bgp.NewPathAttributeOrigin(0), bgp.NewPathAttributeAsPath(nil),
			bgp.NewPathAttributeMpReachNLRI("2001:db8::2", []bgp.AddrPrefixInterface{bgp.NewIPv6AddrPrefix(64, "2001:db8:1::")}),
		}, nil)), // one of many
	} {
		must.NoError(t, f.Add(must.Get(m.Serialize())(t)))
	}
	missing, late := f.Unended()
	if f.Ended() || len(missing) == 0 {
		t.Errorf("ended %t, missing %v, late %v, view %+v", f.Ended(), missing, late, f.View())
	}
}

// A peer whose Peer Up was not fed is not whole before its End-of-RIB.
func TestEndWithoutPeerUp(t *testing.T) {
	f := NewFeed()
	h := *bmp.NewBMPPeerHeader(bmp.BMP_PEER_TYPE_GLOBAL, bmp.BMP_PEER_FLAG_POST_POLICY, 0, "192.0.2.2", 64513, "192.0.2.9", 1767323045)
	m := bmp.NewBMPRouteMonitoring(h, bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{
		bgp.NewPathAttributeOrigin(0), bgp.NewPathAttributeAsPath(nil), bgp.NewPathAttributeNextHop("192.0.2.2"),
	}, []*bgp.IPAddrPrefix{bgp.NewIPAddrPrefix(24, "10.5.112.0")}))
	must.NoError(t, f.Add(must.Get(m.Serialize())(t)))
	missing, late := f.Unended()
	if f.Ended() || len(missing) == 0 {
		t.Errorf("no Peer Up, no End-of-RIB: ended %t, missing %v, late %v", f.Ended(), missing, late)
	}
}
