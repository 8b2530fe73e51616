package router

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/bgp"
	"github.com/relapse-dev/relapse/topology/must"
)

// Replies and announcements for a watched address are kept, by station. Questions, replies for other addresses,
// frames on other links and incomplete frames are not.
func TestHeard(t *testing.T) {
	const link = 7
	address := netip.MustParseAddr("10.65.4.128")
	first, second := net.HardwareAddr{2, 0x42, 0, 0, 0, 1}, net.HardwareAddr{2, 0x42, 0, 0, 0, 2}
	at := time.Unix(1, 0)
	frame := func(from net.HardwareAddr, operation byte, sender, target netip.Addr) []byte {
		f := request(from, target)
		f[arpOperation+1] = operation
		copy(f[arpSenderIP:], sender.AsSlice())
		return f
	}
	a := arp{watched: map[netip.Addr]*watched{address: {iface: net.Interface{Index: link}}}}
	asked := request(first, address)
	if len(asked) != arpLength || asked[arpHeader-1] != 6 {
		t.Fatalf("a question is % x", asked)
	}
	other := netip.MustParseAddr("10.65.4.129")
	for _, f := range [][]byte{
		asked, frame(first, opReply, other, netip.IPv4Unspecified()), frame(first, opReply, address, netip.IPv4Unspecified())[:30],
		frame(first, opRequest, address, other),
		frame(first, opReply, address, netip.IPv4Unspecified()),
		frame(second, opRequest, address, address), frame(second, opReply, address, address),
	} {
		a.heard(f, link, at)
	}
	a.heard(frame(first, opReply, address, netip.IPv4Unspecified()), link+1, at.Add(time.Second))
	want := []bgp.Answer{{MAC: first.String(), Replied: at}, {MAC: second.String(), Gratuitous: 2, Announced: at}}
	must.Equal(t, "", want, a.watched[address].answers)
}
