package router

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/apiutil"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// ipv4Unicast is the only address family of labs.
var ipv4Unicast = &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}

// ipv6Unicast is the other one of routers that are not a lab's.
var ipv6Unicast = &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}

// listRIB requests all paths of the global RIB. The binary form is cheaper than a
// protobuf message for every attribute.
var listRIB = &api.ListPathRequest{
	TableType:        api.TableType_GLOBAL,
	Family:           ipv4Unicast,
	EnableOnlyBinary: true,
}

// pathsOf converts a destination of GoBGP's API. GoBGP lists paths by preference and
// marks only the first as best, even with multipath (ListPath also compares
// sources), so pathsOf determines the multipath set: the paths of the same rank, as
// table.Path.Compare, which getMultiBestPath uses.
func pathsOf(d *api.Destination, localAS uint32) ([]Path, error) {
	paths := make([]Path, 0, len(d.Paths))
	var best rank
	for i, ap := range d.Paths {
		p, r, err := pathOf(ap, localAS)
		if err != nil {
			return nil, fmt.Errorf("path %d to %s: %w", i, d.Prefix, err)
		}
		if i == 0 {
			best = r
			p.Multipath = p.Best
		} else {
			p.Multipath = paths[0].Best && r == best
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// pathOf converts a path of GoBGP's API.
func pathOf(ap *api.Path, localAS uint32) (Path, rank, error) {
	nlri, err := apiutil.GetNativeNlri(ap)
	if err != nil {
		return Path{}, rank{}, fmt.Errorf("decoding NLRI: %w", err)
	}
	prefix, err := netip.ParsePrefix(nlri.String())
	if err != nil {
		return Path{}, rank{}, fmt.Errorf("decoding NLRI: %w", err)
	}
	attrs, err := apiutil.GetNativePathAttributes(ap)
	if err != nil {
		return Path{}, rank{}, fmt.Errorf("decoding attributes: %w", err)
	}
	p := ranked{Path: Path{Prefix: prefix, Best: ap.Best, Received: ap.Age.AsTime()}}
	// It is "<nil>" for a path without a neighbour.
	if a, err := netip.ParseAddr(ap.NeighborIp); err == nil {
		p.Neighbor = a
		p.Internal = ap.SourceAsn == localAS
	}
	p.rank.local, p.rank.internal = !p.Neighbor.IsValid(), p.Internal
	p.attributes(attrs)
	return p.Path, p.rank, nil
}

// ranked is a path with what decides how much it is preferred.
type ranked struct {
	Path
	rank rank
}

// attributes sets what the attributes of a path say.
func (p *ranked) attributes(attrs []bgp.PathAttributeInterface) {
	p.LocalPref = defaultLocalPref
	for _, attr := range attrs {
		switch a := attr.(type) {
		case *bgp.PathAttributeOrigin:
			p.rank.origin = a.Value
		case *bgp.PathAttributeAsPath:
			for _, segment := range a.Value {
				p.ASPath = append(p.ASPath, segment.GetAS()...)
				p.rank.asPathLen += segment.ASLen()
			}
		case *bgp.PathAttributeNextHop:
			p.NextHop = address(a.Value)
		case *bgp.PathAttributeMpReachNLRI:
			p.NextHop = address(a.Nexthop)
		case *bgp.PathAttributeMultiExitDisc:
			p.MED = a.Value
		case *bgp.PathAttributeLocalPref:
			p.LocalPref = a.Value
		}
	}
	p.Origin = origin(p.rank.origin)
	p.rank.localPref, p.rank.med = p.LocalPref, p.MED
}

// address converts an address; the result is invalid if ip is.
func address(ip []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func origin(v uint8) string {
	switch v {
	case bgp.BGP_ORIGIN_ATTR_TYPE_IGP:
		return "igp"
	case bgp.BGP_ORIGIN_ATTR_TYPE_EGP:
		return "egp"
	default:
		return "incomplete"
	}
}

// neighborOf converts a peer of GoBGP's API.
func neighborOf(ap *api.Peer) Neighbor {
	n := Neighbor{
		AS:    ap.GetState().GetPeerAsn(),
		State: strings.ToLower(ap.GetState().GetSessionState().String()),
	}
	n.Address, _ = netip.ParseAddr(ap.GetState().GetNeighborAddress())
	if n.State == StateEstablished {
		n.RouterID, _ = netip.ParseAddr(ap.GetState().GetRouterId())
		timers := ap.GetTimers().GetState()
		n.HoldTime = time.Duration(timers.GetNegotiatedHoldTime()) * time.Second
		n.Established = timers.GetUptime().AsTime()
	}
	for _, family := range ap.GetAfiSafis() {
		if f := family.GetState().GetFamily(); f.GetAfi() == ipv4Unicast.Afi && f.GetSafi() == ipv4Unicast.Safi {
			n.Received = family.State.Received
			n.Accepted = family.State.Accepted
		}
	}
	return n
}

func sortPaths(paths []Path) {
	// Stable: GoBGP lists the paths to one prefix by preference.
	slices.SortStableFunc(paths, func(a, b Path) int { return comparePrefixes(a.Prefix, b.Prefix) })
}

func sortNeighbors(neighbors []Neighbor) {
	slices.SortFunc(neighbors, func(a, b Neighbor) int { return a.Address.Compare(b.Address) })
}
