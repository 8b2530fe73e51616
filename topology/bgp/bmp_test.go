package bgp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/osrg/gobgp/v3/pkg/packet/bmp"

	"github.com/relapse-dev/relapse/topology/must"
)

const feedAS = 64524 // of the router

func header(kind, flags uint8, peer string, as uint32) bmp.BMPPeerHeader {
	return *bmp.NewBMPPeerHeader(kind, flags, 0, peer, as, "192.0.2.9", 1767323045)
}

func encoded(t testing.TB, m *bmp.BMPMessage) []byte {
	t.Helper()
	return must.Get(m.Serialize())(t)
}

func peerUp(t testing.TB, peer string, as uint32, capabilities ...bgp.ParameterCapabilityInterface) []byte {
	open := func(as uint32) *bgp.BGPMessage {
		all := append([]bgp.ParameterCapabilityInterface{bgp.NewCapFourOctetASNumber(as)}, capabilities...)
		return bgp.NewBGPOpenMessage(uint16(as), 90, "192.0.2.9", []bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(all)})
	}
	return encoded(t, bmp.NewBMPPeerUpNotification(header(bmp.BMP_PEER_TYPE_GLOBAL, 0, peer, as), "192.0.2.1", 179, 40000, open(feedAS), open(as)))
}

func fedRoute(t testing.TB, h bmp.BMPPeerHeader, hop string, as []uint32, prefixes ...string) []byte {
	var nlri []*bgp.IPAddrPrefix
	for _, p := range prefixes {
		p := prefix(p)
		nlri = append(nlri, bgp.NewIPAddrPrefix(uint8(p.Bits()), p.Addr().String()))
	}
	path := bgp.PathAttributeInterface(bgp.NewPathAttributeAsPath(nil))
	if len(as) > 0 {
		path = sequence(as...)
	}
	return encoded(t, bmp.NewBMPRouteMonitoring(h, bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{
		bgp.NewPathAttributeOrigin(0), path, bgp.NewPathAttributeNextHop(hop),
	}, nlri)))
}

func withdrawal(t testing.TB, h bmp.BMPPeerHeader, p string) []byte {
	return encoded(t, bmp.NewBMPRouteMonitoring(h, bgp.NewBGPUpdateMessage(
		[]*bgp.IPAddrPrefix{bgp.NewIPAddrPrefix(uint8(prefix(p).Bits()), prefix(p).Addr().String())}, nil, nil)))
}

func endOf(t testing.TB, h bmp.BMPPeerHeader) []byte {
	return encoded(t, bmp.NewBMPRouteMonitoring(h, bgp.NewBGPUpdateMessage(nil, nil, nil)))
}

func feedOf(t testing.TB, messages ...[]byte) *Feed {
	t.Helper()
	f := NewFeed()
	for _, m := range messages {
		must.NoError(t, f.Add(m))
	}
	return f
}

func TestFeed(t *testing.T) {
	const one, two = "192.0.2.2", "192.0.2.3"
	prePolicy, postPolicy := header(bmp.BMP_PEER_TYPE_GLOBAL, 0, one, 64513), header(bmp.BMP_PEER_TYPE_GLOBAL, bmp.BMP_PEER_FLAG_POST_POLICY, one, 64513)
	out := header(bmp.BMP_PEER_TYPE_GLOBAL, bmp.BMP_PEER_FLAG_ADJ_RIB_TYP, one, 64513)
	second := header(bmp.BMP_PEER_TYPE_GLOBAL, 0, two, feedAS)
	local, vrf := header(bmp.BMP_PEER_TYPE_LOCAL_RIB, 0, "0.0.0.0", feedAS), header(bmp.BMP_PEER_TYPE_LOCAL_RIB, 0, "0.0.0.0", feedAS)
	vrf.PeerDistinguisher = 7
	filtered := local
	filtered.Flags = bmp.BMP_PEER_FLAG_IPV6
	localUp := peerUp(t, "0.0.0.0", feedAS)
	localUp[bmp.BMP_HEADER_SIZE] = bmp.BMP_PEER_TYPE_LOCAL_RIB
	up, route := peerUp(t, one, 64513), fedRoute(t, prePolicy, one, []uint32{64513}, "10.5.112.0/24", "10.5.113.0/24")
	path := func(p, hop, from, as, flags string) string {
		return p + " via " + hop + " from " + from + " as [" + as + "]" + flags
	}
	const best = " best multipath"
	first := []string{path("10.5.112.0/24", one, one, "64513", best), path("10.5.113.0/24", one, one, "64513", best)}
	for _, test := range []struct {
		name  string
		feed  [][]byte
		paths []string
		peers []string
		view  View
		ended bool
		// unended are the sessions without an End-of-RIB, and the late sessions.
		unended string
	}{
		{name: "nothing", unended: "[] []"},
		{"a session", [][]byte{up}, nil, []string{one + " AS 64513 established"}, View{}, false, "[] [192.0.2.2]"},
		{"before the policy", [][]byte{up, route, endOf(t, prePolicy)}, first, []string{one + " AS 64513 established"}, View{IPv4: true, Before: true}, true, "[] []"},
		{"withdrawn", [][]byte{up, route, withdrawal(t, prePolicy, "10.5.112.0/24")}, first[1:], []string{one + " AS 64513 established"}, View{IPv4: true, Before: true}, false, "[192.0.2.2] []"},
		{"the session is down", [][]byte{up, route, encoded(t, bmp.NewBMPPeerDownNotification(prePolicy, bmp.BMP_PEER_DOWN_REASON_REMOTE_NO_NOTIFICATION, nil, nil))},
			nil, []string{one + " AS 64513 idle"}, View{IPv4: true}, true, "[] []"},
		{"a peer that is fed no more", [][]byte{up, route, endOf(t, prePolicy), peerUp(t, two, feedAS), fedRoute(t, second, two, nil, "10.5.112.0/24"), endOf(t, second),
			encoded(t, bmp.NewBMPPeerDownNotification(second, bmp.BMP_PEER_DOWN_REASON_PEER_DE_CONFIGURED, nil, nil))},
			first, []string{one + " AS 64513 established"}, View{IPv4: true, Before: true}, true, "[] []"},
		{"after the policy", [][]byte{up, route, fedRoute(t, postPolicy, one, []uint32{64513}, "10.5.113.0/24")}, first[1:], []string{one + " AS 64513 established"}, View{IPv4: true}, false, "[192.0.2.2] []"},
		{"what is announced to a peer", [][]byte{up, fedRoute(t, out, one, []uint32{64513}, "10.5.113.0/24")}, nil, []string{one + " AS 64513 established"}, View{}, false, "[] [192.0.2.2]"},
		{"two peers, one of them internal", [][]byte{up, route, peerUp(t, two, feedAS), fedRoute(t, second, two, nil, "10.5.112.0/24")}, []string{
			path("10.5.112.0/24", two, two, "", " best multipath internal"), path("10.5.112.0/24", one, one, "64513", ""), first[1],
		}, []string{one + " AS 64513 established", two + " AS 64524 established"}, View{IPv4: true, Before: true}, false, "[192.0.2.2] [192.0.2.3]"},
		{"Loc-RIB alone", [][]byte{fedRoute(t, local, one, []uint32{64513}, "10.5.112.0/24"), endOf(t, local)}, first[:1], nil, View{LocRIB: true, IPv4: true}, true, "[] []"},
		{"Loc-RIB without its end", [][]byte{localUp, fedRoute(t, local, one, []uint32{64513}, "10.5.112.0/24")}, first[:1], nil, View{LocRIB: true, IPv4: true}, false, "[the Loc-RIB] []"},
		{"Loc-RIB and a peer that sends another's next hop", [][]byte{
			up, fedRoute(t, prePolicy, "192.0.2.77", []uint32{64513}, "10.5.112.0/24"), fedRoute(t, local, "192.0.2.77", []uint32{64513}, "10.5.112.0/24"),
		}, []string{path("10.5.112.0/24", "192.0.2.77", one, "64513", best)}, []string{one + " AS 64513 established"}, View{LocRIB: true, IPv4: true, Endless: true}, false, "[] []"},
		{"the Loc-RIB of a VRF", [][]byte{fedRoute(t, vrf, one, []uint32{64513}, "10.5.112.0/24")}, nil, nil, View{}, false, "[] []"},
		{"a part of the Loc-RIB", [][]byte{fedRoute(t, filtered, one, []uint32{64513}, "10.5.112.0/24")}, first[:1], nil, View{LocRIB: true, IPv4: true, Filtered: true, Endless: true}, false, "[] []"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := feedOf(t, test.feed...)
			must.Equal(t, "paths", test.paths, pathLines(f.RIB()))
			must.Equal(t, "peers", test.peers, peersTold(f.Neighbors()))
			must.Equal(t, "view", test.view, f.View())
			must.Equal(t, "ended", test.ended, f.Ended())
			missing, late := f.Unended()
			must.Equal(t, "without an End-of-RIB, and late", test.unended, fmt.Sprint(missing, " ", late))
		})
	}
}

// The End-of-RIB of IPv4 does not count for IPv6. A peer without a Peer Up is not whole before its End-of-RIB.
func TestFeedUnended(t *testing.T) {
	const peer = "192.0.2.2"
	h := header(bmp.BMP_PEER_TYPE_GLOBAL, bmp.BMP_PEER_FLAG_POST_POLICY, peer, 64513)
	oneOfMany := encoded(t, bmp.NewBMPRouteMonitoring(h, bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{
		bgp.NewPathAttributeOrigin(0), bgp.NewPathAttributeAsPath(nil),
		bgp.NewPathAttributeMpReachNLRI("2001:db8::2", []bgp.AddrPrefixInterface{bgp.NewIPv6AddrPrefix(64, "2001:db8:1::")}),
	}, nil)))
	for name, f := range map[string]*Feed{
		"IPv6": feedOf(t, peerUp(t, peer, 64513, bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC), bgp.NewCapMultiProtocol(bgp.RF_IPv6_UC)),
			endOf(t, h), oneOfMany),
		"no Peer Up": feedOf(t, fedRoute(t, h, peer, nil, "10.5.112.0/24")),
	} {
		if missing, late := f.Unended(); f.Ended() || len(missing) == 0 {
			t.Errorf("%s: ended %t, missing %v, late %v, view %+v", name, f.Ended(), missing, late, f.View())
		}
	}
}

// A peer that is no longer fed is named until its session comes up again, and a late session for a time.
func TestFeedUnfed(t *testing.T) {
	const one, two = "192.0.2.2", "192.0.2.3"
	h := header(bmp.BMP_PEER_TYPE_GLOBAL, 0, two, 64513)
	down := encoded(t, bmp.NewBMPPeerDownNotification(h, bmp.BMP_PEER_DOWN_REASON_PEER_DE_CONFIGURED, nil, nil))
	route := fedRoute(t, header(bmp.BMP_PEER_TYPE_GLOBAL, 0, one, 64513), one, []uint32{64513}, "10.5.112.0/24")
	f := feedOf(t, peerUp(t, one, 64513), route, peerUp(t, two, 64513), down)
	must.Equal(t, "", "[192.0.2.3] []", fmt.Sprint(f.Unfed(), f.Young(time.Minute)))
	must.NoError(t, f.Add(peerUp(t, two, 64513)))
	must.Equal(t, "", "[] [192.0.2.3] []", fmt.Sprint(f.Unfed(), f.Young(time.Minute), f.Young(0)))
}

// A recorded feed of FRR has its Loc-RIB, and the IPv4 routes of its peers after policy, but not the IPv6 routes.
// The next hop is therefore taken for the neighbour of the last path.
func TestFeedOfFRR(t *testing.T) {
	f := NewFeed()
	for text := []byte(read(t, "frr-10.3.bmp")); len(text) > 0; {
		length := binary.BigEndian.Uint32(text[1:5])
		must.NoError(t, f.Add(text[:length]))
		text = text[length:]
	}
	must.Equal(t, "paths", []string{
		"10.5.112.0/24 via 198.18.77.3 from 198.18.77.3 as [64513] best multipath",
		"10.5.113.0/24 via 198.18.77.8 from 198.18.77.3 as [64513] best multipath",
		"203.0.113.0/24 via 0.0.0.0 from invalid IP as [] best multipath",
		"2001:db8:cb::/48 via :: from invalid IP as [] best multipath",
		"fd00:10:5:112::/64 via 2001:db8:77::3 from 2001:db8:77::3 as [64513] best multipath",
		"fd00:10:5:113::/64 via 2001:db8:77::8 from 2001:db8:77::8 as [64513] best multipath",
	}, pathLines(f.RIB()))
	must.Equal(t, "peers", []string{
		"198.18.77.3 AS 64513 established", "2001:db8:77::3 AS 64513 established", "2001:db8:77::9 AS 64513 idle",
	}, peersTold(f.Neighbors()))
	must.Equal(t, "view", View{LocRIB: true, IPv4: true, IPv6: true}, f.View())
	must.Equal(t, "ended", true, f.Ended())
}

// A peer that sends several paths to a prefix names each.
func TestFeedAddPath(t *testing.T) {
	both := bgp.NewCapAddPath([]*bgp.CapAddPathTuple{bgp.NewCapAddPathTuple(bgp.RF_IPv4_UC, bgp.BGP_ADD_PATH_BOTH)})
	f, h := feedOf(t, peerUp(t, "192.0.2.2", 64513, both)), header(bmp.BMP_PEER_TYPE_GLOBAL, 0, "192.0.2.2", 64513)
	options := &bgp.MarshallingOption{AddPath: map[bgp.RouteFamily]bgp.BGPAddPathMode{bgp.RF_IPv4_UC: bgp.BGP_ADD_PATH_BOTH}}
	for id, hop := range []string{"192.0.2.2", "192.0.2.7"} {
		nlri := bgp.NewIPAddrPrefix(24, "10.5.112.0")
		nlri.SetPathLocalIdentifier(uint32(id) + 1)
		update := bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(0), sequence(64513), bgp.NewPathAttributeNextHop(hop)}, []*bgp.IPAddrPrefix{nlri})
		must.NoError(t, f.Add(must.Get(bmp.NewBMPRouteMonitoring(h, update).Serialize(options))(t)))
	}
	must.Equal(t, "", 2, len(pathLines(f.RIB())))
}

func TestFeedRefusals(t *testing.T) {
	h := header(bmp.BMP_PEER_TYPE_GLOBAL, 0, "192.0.2.2", 64513)
	route := fedRoute(t, h, "192.0.2.2", []uint32{64513}, "10.5.112.0/24")
	for _, test := range map[string]struct {
		text []byte
		want string
	}{
		"cut off":   {route[:len(route)-3], "it is shorter than it says"},
		"no UPDATE": {encoded(t, bmp.NewBMPRouteMonitoring(h, bgp.NewBGPKeepAliveMessage())), "no UPDATE"},
	} {
		must.Fail(t, NewFeed().Add(test.text), test.want)
	}
}

// A peer whose messages cannot be read is left out until its session comes up again, and the router's own
// peer always. The other peers are read.
func TestFeedUnreadable(t *testing.T) {
	h, other := header(bmp.BMP_PEER_TYPE_GLOBAL, 0, "192.0.2.2", 64513), header(bmp.BMP_PEER_TYPE_GLOBAL, 0, "192.0.2.3", 64513)
	route := func() []byte { return fedRoute(t, h, "192.0.2.2", []uint32{64513}, "10.5.112.0/24") }
	newer := route()
	newer[0] = 4
	broken := route()
	broken[bmp.BMP_HEADER_SIZE+bmp.BMP_PEER_HEADER_SIZE+19] = 0xff // the length of the withdrawn routes
	for _, test := range []struct {
		name string
		text []byte
		want string
	}{
		{"version 4", newer, "192.0.2.2 (it is fed in version 4 of BMP, and 3 is read)"},
		{"lengths", broken, "192.0.2.2 ("},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := feedOf(t, peerUp(t, "0.0.0.0", 64524), peerUp(t, "192.0.2.2", 64513), route(), test.text, route(),
				fedRoute(t, other, "192.0.2.3", []uint32{64513}, "10.5.113.0/24"))
			if got := f.Unread(); len(got) != 1 || !strings.HasPrefix(got[0], test.want) {
				t.Errorf("unread %q, want %q", got, test.want)
			}
			if rib := f.RIB(); len(rib) != 1 || rib[0].Prefix != prefix("10.5.113.0/24") {
				t.Errorf("the RIB is %+v, want the other peer's", rib)
			}
			if n := f.Neighbors(); len(n) != 2 || n[0].State != StateUnknown || !f.HasOwnPeer() {
				t.Errorf("neighbours %+v and the router's own: %t, want two and its own passed over", n, f.HasOwnPeer())
			}
			must.NoError(t, f.Add(peerUp(t, "192.0.2.2", 64513)))
			must.NoError(t, f.Add(route()))
			if got := f.Unread(); len(got) != 0 || len(f.RIB()) != 2 {
				t.Errorf("unread %q with the next session, RIB %+v", got, f.RIB())
			}
		})
	}
}

func FuzzFeed(f *testing.F) {
	h := header(bmp.BMP_PEER_TYPE_GLOBAL, 0, "192.0.2.2", 64513)
	local := header(bmp.BMP_PEER_TYPE_LOCAL_RIB, 0, "0.0.0.0", feedAS)
	f.Add(bytes.Join([][]byte{
		peerUp(f, "192.0.2.2", 64513), fedRoute(f, h, "192.0.2.2", []uint32{64513}, "10.5.112.0/24"), withdrawal(f, h, "10.5.112.0/24"),
		fedRoute(f, local, "192.0.2.2", []uint32{64513}, "10.5.112.0/24"), endOf(f, h),
	}, nil))
	f.Fuzz(func(t *testing.T, text []byte) {
		feed := NewFeed()
		for len(text) >= bmp.BMP_HEADER_SIZE {
			length := int(binary.BigEndian.Uint32(text[1:5]))
			if length < bmp.BMP_HEADER_SIZE || length > len(text) || feed.Add(text[:length]) != nil {
				break
			}
			text = text[length:]
		}
		feed.Ended()
		for _, p := range feed.RIB() {
			if !p.Prefix.IsValid() {
				t.Errorf("%+v", p)
			}
		}
		for _, n := range feed.Neighbors() {
			if !n.Address.IsValid() {
				t.Errorf("%+v", n)
			}
		}
		for _, p := range feed.peers {
			feed.drop(p)
		}
		if feed.local != nil {
			feed.drop(feed.local)
		}
		must.Equal(t, "", 0, feed.used)
	})
}
