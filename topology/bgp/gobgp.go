package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/apiutil"
	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

var ipv4Unicast = &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}

// GoBGPFamilies are the address families that are read: unicast of IPv4, then of IPv6.
var GoBGPFamilies = []*api.Family{ipv4Unicast, {Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}}

// ListGoBGP requests all paths of the global unicast table of IPv4, or of IPv6. The binary form is
// cheaper than a protobuf message for every attribute.
func ListGoBGP(v6 bool) *api.ListPathRequest {
	ask := &api.ListPathRequest{TableType: api.TableType_GLOBAL, Family: ipv4Unicast, EnableOnlyBinary: true}
	if v6 {
		ask.Family = GoBGPFamilies[1]
	}
	return ask
}

// GoBGPPaths converts a destination of GoBGP's API. GoBGP lists paths by preference and marks only the
// first as best, even with multipath (ListPath also compares sources). GoBGPPaths determines the multipath
// set as getMultiBestPath does: the paths of the same rank by table.Path.Compare.
func GoBGPPaths(d *api.Destination, localAS uint32) ([]Path, error) {
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
	p := ranked{Path: Path{Prefix: prefix, Best: ap.Best}}
	// It is "<nil>" for a path without a neighbour.
	if a, err := netip.ParseAddr(ap.NeighborIp); err == nil {
		p.Neighbor = a
		p.Internal = ap.SourceAsn == localAS
	}
	p.rank.local, p.rank.internal = !p.Neighbor.IsValid(), p.Internal
	p.attributes(attrs)
	return p.Path, p.rank, nil
}

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
	p.Origin = origins[min(int(p.rank.origin), len(origins)-1)]
	p.rank.localPref, p.rank.med = p.LocalPref, p.MED
}

var origins = []string{"igp", "egp", "incomplete"}

// GoBGPNeighbor converts a peer of GoBGP's API.
func GoBGPNeighbor(ap *api.Peer) Neighbor {
	n := Neighbor{
		AS:    ap.GetState().GetPeerAsn(),
		State: strings.ToLower(ap.GetState().GetSessionState().String()),
	}
	n.Address, _ = netip.ParseAddr(ap.GetState().GetNeighborAddress())
	if n.State == StateEstablished {
		n.RouterID, _ = netip.ParseAddr(ap.GetState().GetRouterId())
		n.Established = ap.GetTimers().GetState().GetUptime().AsTime()
	}
	for _, family := range ap.GetAfiSafis() {
		if f := family.GetState().GetFamily(); f.GetAfi() == ipv4Unicast.Afi && f.GetSafi() == ipv4Unicast.Safi {
			n.Received = family.State.Received
			n.Accepted = family.State.Accepted
		}
	}
	return n
}

// GoBGP reads a GoBGP that this package does not run, by the gRPC API of GoBGP 3. It only lists.
type GoBGP struct{ api api.GobgpApiClient }

// NewGoBGP makes a reader of the GoBGP at the other end of a connection.
func NewGoBGP(conn grpc.ClientConnInterface) *GoBGP { return &GoBGP{api.NewGobgpApiClient(conn)} }

// RIB lists all paths of the global unicast table of IPv4, or of IPv6, by prefix, then by
// preference. It is an ErrRefused if GoBGP has no such table.
func (g *GoBGP) RIB(ctx context.Context, v6 bool) ([]Path, error) {
	global, err := g.api.GetBgp(ctx, &api.GetBgpRequest{})
	if err != nil {
		return nil, fmt.Errorf("reading GoBGP's AS: %w", err)
	}
	list, err := g.api.ListPath(ctx, ListGoBGP(v6))
	if err != nil {
		return nil, fmt.Errorf("listing GoBGP's RIB: %w", err)
	}
	paths, left := []Path{}, budget(maxTable)
	err = each(list.Recv, func(answer *api.ListPathResponse) error {
		some, err := GoBGPPaths(answer.GetDestination(), global.GetGlobal().GetAsn())
		if err != nil {
			return err
		}
		paths = append(paths, some...)
		return left.take(some...)
	})
	if strings.Contains(status.Convert(err).Message(), "not supported") { // "address family: ipv6-unicast not supported"
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listing GoBGP's RIB: %w", err)
	}
	// Stable: GoBGP lists the paths to one prefix by preference.
	slices.SortStableFunc(paths, func(a, b Path) int { return ComparePrefixes(a.Prefix, b.Prefix) })
	return paths, nil
}

// Neighbors lists the peers in order of address.
func (g *GoBGP) Neighbors(ctx context.Context) ([]Neighbor, error) {
	list, err := g.api.ListPeer(ctx, &api.ListPeerRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing GoBGP's peers: %w", err)
	}
	neighbors := []Neighbor{}
	err = each(list.Recv, func(answer *api.ListPeerResponse) error {
		n := GoBGPNeighbor(answer.GetPeer())
		if !n.Address.IsValid() {
			return fmt.Errorf("a peer has the address %q", answer.GetPeer().GetState().GetNeighborAddress())
		}
		if neighbors = append(neighbors, n); len(neighbors) > maxNeighbors {
			return fmt.Errorf("there are more than %d", maxNeighbors)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing GoBGP's peers: %w", err)
	}
	sortNeighbors(neighbors)
	return neighbors, nil
}

// each calls do for each answer of a stream.
func each[T any](next func() (T, error), do func(T) error) error {
	for {
		answer, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(answer); err != nil {
			return err
		}
	}
}

const (
	// maxTable bounds the memory, in bytes, of the paths of a router that is not the lab's:
	// about two million paths.
	maxTable = 512 << 20
	// maxNeighbors bounds its sessions: more than any router has.
	maxNeighbors = 100_000
)

// budget is the memory in bytes that further paths may take.
type budget int

// take takes the memory of paths. The error says that it is not enough.
func (b *budget) take(paths ...Path) error {
	for _, p := range paths {
		*b -= budget(sizeOf(p))
	}
	if *b < 0 {
		return fmt.Errorf("the paths take more than %d MiB", maxTable>>20)
	}
	return nil
}

// sizeOf is the memory that a path takes, in bytes, with its AS path.
func sizeOf(p Path) int { return 224 + 4*len(p.ASPath) }
