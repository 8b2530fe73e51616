package bgp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/osrg/gobgp/v3/pkg/packet/bmp"
)

// Feed is what a router has told a BMP station over one connection (RFC 7854, and RFC 9069 for the
// Loc-RIB): the default VRF's routes of IPv4 and IPv6 unicast. It is not safe for concurrent use.
type Feed struct {
	peers map[netip.Addr]*fed
	// local is the Loc-RIB, where the router feeds it.
	local *fed
	// filtered is set if the router says that it does not feed its whole Loc-RIB.
	filtered bool
	// begun is set once any table has been fed. families are the families of the fed tables.
	begun    bool
	families map[int]bool
	// unfed are peers that the router has ceased to feed, whose sessions may be up.
	unfed map[netip.Addr]bool
	// unread says, by peer, why its messages cannot be read.
	unread map[netip.Addr]string
	// own is set if a peer without an address was passed over.
	own  bool
	used int // bytes of memory
}

type fed struct {
	Neighbor
	localAS uint32
	// prePolicy and postPolicy are the routes before and after the import policy; nil until the router feeds
	// them. The routes of the Loc-RIB are in postPolicy.
	prePolicy, postPolicy *fedTable
	addPath               map[bgp.RouteFamily]bgp.BGPAddPathMode
	// ended are the families whose initial routes have been fed, by the length of an address; 0 for the
	// families that are not read.
	ended map[int]bool
	// peerUp is set by a Peer Up, which came at since. late is set if the feed of routes had begun before.
	peerUp, late bool
	since        time.Time
}

type fedTable struct {
	paths map[fedKey]ranked
	// families are the families of the routes and End-of-RIBs that were fed, by the length of an address.
	families map[int]bool
}

type fedKey struct {
	prefix netip.Prefix
	id     uint32 // of several paths of a peer
}

// View is which of a router's tables were fed.
type View struct {
	// LocRIB is set if the Loc-RIB was fed: the routes that the router has chosen. Otherwise the routes of
	// its peers were fed, after its import policy, or before it if Before is set.
	LocRIB, Before bool
	// Filtered is set if the router says that the Loc-RIB is not fed whole.
	Filtered bool
	// Endless is set if the router sends neither an End-of-RIB nor a Peer Up for its Loc-RIB, as GoBGP 3.
	Endless bool
	// IPv4 and IPv6 are set if anything of that family was fed.
	IPv4, IPv6 bool
}

// NewFeed makes an empty feed.
func NewFeed() *Feed {
	return &Feed{peers: map[netip.Addr]*fed{}, families: map[int]bool{}, unfed: map[netip.Addr]bool{}, unread: map[netip.Addr]string{}}
}

// Add adds a message with its header. An error is the end of the feed: later tables would be incomplete.
func (f *Feed) Add(message []byte) error {
	if err := f.add(message); err != nil {
		return fmt.Errorf("reading a BMP message: %w", err)
	}
	return nil
}

func (f *Feed) add(message []byte) error {
	if len(message) < bmp.BMP_HEADER_SIZE || binary.BigEndian.Uint32(message[1:5]) != uint32(len(message)) {
		return errors.New("it is shorter than it says") // package bmp would read on in the array behind the slice
	}
	if message[0] != bmp.BMP_VERSION {
		return f.cannotRead(message, fmt.Errorf("it is fed in version %d of BMP, and %d is read", message[0], bmp.BMP_VERSION))
	}
	m, err := bmp.ParseBMPMessageWithOptions(message, func(h bmp.BMPPeerHeader) []*bgp.MarshallingOption {
		if p := f.find(h); p != nil && len(p.addPath) > 0 {
			return []*bgp.MarshallingOption{{AddPath: p.addPath}}
		}
		return nil
	})
	if err != nil {
		return f.cannotRead(message, err)
	}
	switch body := m.Body.(type) {
	case *bmp.BMPPeerUpNotification:
		p, err := f.peer(m.PeerHeader)
		if p == nil {
			return err
		}
		f.drop(p)
		p.up(m.PeerHeader, body)
		p.peerUp, p.late, p.since = true, f.begun, time.Now()
		delete(f.unfed, p.Address)
		delete(f.unread, p.Address)
	case *bmp.BMPPeerDownNotification:
		// FRR first sends a Peer Down for each session that is down.
		p, err := f.peer(m.PeerHeader)
		if p == nil {
			return err
		}
		f.drop(p)
		if body.Reason == bmp.BMP_PEER_DOWN_REASON_PEER_DE_CONFIGURED && p != f.local && len(f.unfed) < maxNeighbors {
			// It does not say that the session is down (RFC 7854, 4.9).
			delete(f.peers, p.Address)
			f.unfed[p.Address] = true
			return nil
		}
		p.Neighbor = Neighbor{Address: p.Address, AS: p.AS, State: "idle"}
	case *bmp.BMPRouteMonitoring:
		update, ok := body.BGPUpdate.Body.(*bgp.BGPUpdate)
		if !ok {
			return errors.New("it has a BGP message that is no UPDATE")
		}
		p, err := f.peer(m.PeerHeader)
		if p == nil || f.unread[p.Address] != "" {
			return err
		}
		return f.update(p, m.PeerHeader, update)
	}
	return nil // statistics, and what is said at the beginning and end
}

// cannotRead drops a peer whose message cannot be read, until its session comes up again. The error of
// a message without such a peer is the end of the feed.
func (f *Feed) cannotRead(message []byte, why error) error {
	if len(message) < bmp.BMP_HEADER_SIZE+bmp.BMP_PEER_HEADER_SIZE || message[5] == bmp.BMP_MSG_INITIATION ||
		message[5] == bmp.BMP_MSG_TERMINATION {
		return why
	}
	var h bmp.BMPPeerHeader
	if err := h.DecodeFromBytes(message[bmp.BMP_HEADER_SIZE:]); err != nil || !ours(h) || loc(h) {
		return why
	}
	p, err := f.peer(h)
	if p == nil {
		return err
	}
	f.drop(p)
	p.State = StateUnknown
	f.unread[p.Address] = why.Error()
	return nil
}

// Unread lists the peers whose messages cannot be read, and why, in order of address.
func (f *Feed) Unread() (all []string) {
	for _, a := range slices.SortedFunc(maps.Keys(f.unread), netip.Addr.Compare) {
		all = append(all, fmt.Sprintf("%s (%s)", a, f.unread[a]))
	}
	return all
}

// HasOwnPeer reports whether the router has fed a peer without an address: itself, which is passed over.
func (f *Feed) HasOwnPeer() bool { return f.own }

// loc reports whether a header is of a Loc-RIB. ours reports whether it is of a table that is read: not of
// a VRF, and not of the routes that are announced to a peer.
func loc(h bmp.BMPPeerHeader) bool { return h.PeerType == bmp.BMP_PEER_TYPE_LOCAL_RIB }

func ours(h bmp.BMPPeerHeader) bool {
	return h.PeerDistinguisher == 0 && (loc(h) || h.PeerType == bmp.BMP_PEER_TYPE_GLOBAL && !h.IsAdjRIBOut())
}

func (f *Feed) find(h bmp.BMPPeerHeader) *fed {
	switch {
	case !ours(h):
		return nil
	case loc(h):
		return f.local
	}
	return f.peers[address(h.PeerAddress)]
}

// peer is the peer of a header, made if there is none; nil if it is not read.
func (f *Feed) peer(h bmp.BMPPeerHeader) (*fed, error) {
	if p := f.find(h); p != nil || !ours(h) {
		return p, nil
	}
	p := &fed{Neighbor: Neighbor{AS: h.PeerAS, State: StateUnknown}, ended: map[int]bool{}}
	if loc(h) {
		p.localAS = h.PeerAS
		f.local = p
		return p, nil
	}
	p.Address = address(h.PeerAddress)
	if !p.Address.IsValid() || p.Address.IsUnspecified() {
		f.own = true // routers that are based on FRR begin with a Peer Up of their own
		return nil, nil
	}
	if len(f.peers) == maxNeighbors {
		return nil, fmt.Errorf("there are more than %d peers", maxNeighbors)
	}
	f.peers[p.Address] = p
	return p, nil
}

// up sets what a message says of a session that has come up.
func (p *fed) up(h bmp.BMPPeerHeader, body *bmp.BMPPeerUpNotification) {
	p.AS, p.RouterID, p.State, p.ended = h.PeerAS, address(h.PeerBGPID), StateEstablished, map[int]bool{}
	p.Established = time.Unix(int64(h.Timestamp), 0).UTC()
	p.addPath = map[bgp.RouteFamily]bgp.BGPAddPathMode{}
	sent, received := addPathOf(body.SentOpenMsg), addPathOf(body.ReceivedOpenMsg)
	for family, mode := range received {
		if mode&bgp.BGP_ADD_PATH_SEND != 0 && sent[family]&bgp.BGP_ADD_PATH_RECEIVE != 0 || loc(h) {
			p.addPath[family] = bgp.BGP_ADD_PATH_RECEIVE
		}
	}
	if open, ok := body.SentOpenMsg.Body.(*bgp.BGPOpen); ok && !loc(h) {
		p.localAS = uint32(open.MyAS)
		eachCapability(open, func(c bgp.ParameterCapabilityInterface) {
			if four, ok := c.(*bgp.CapFourOctetASNumber); ok {
				p.localAS = four.CapValue
			}
		})
	}
}

// addPathOf are the families for which an OPEN offers to send or receive several paths.
func addPathOf(m *bgp.BGPMessage) map[bgp.RouteFamily]bgp.BGPAddPathMode {
	modes := map[bgp.RouteFamily]bgp.BGPAddPathMode{}
	if open, ok := m.Body.(*bgp.BGPOpen); ok {
		eachCapability(open, func(c bgp.ParameterCapabilityInterface) {
			if add, ok := c.(*bgp.CapAddPath); ok {
				for _, t := range add.Tuples {
					modes[t.RouteFamily] = t.Mode
				}
			}
		})
	}
	return modes
}

func eachCapability(open *bgp.BGPOpen, do func(bgp.ParameterCapabilityInterface)) {
	for _, parameter := range open.OptParams {
		if all, ok := parameter.(*bgp.OptionParameterCapability); ok {
			for _, c := range all.Capability {
				do(c)
			}
		}
	}
}

func (f *Feed) drop(p *fed) {
	for _, t := range []*fedTable{p.prePolicy, p.postPolicy} {
		if t != nil {
			for _, path := range t.paths {
				f.used -= fedSize(path)
			}
		}
	}
	p.prePolicy, p.postPolicy, p.ended = nil, nil, map[int]bool{}
}

// fedSize is the memory that a path takes, in bytes, with its place in a table.
func fedSize(p ranked) int { return sizeOf(p.Path) + 96 }

func (f *Feed) update(p *fed, h bmp.BMPPeerHeader, update *bgp.BGPUpdate) error {
	f.begun = true
	slot := &p.prePolicy
	if loc(h) || h.IsPostPolicy() {
		slot = &p.postPolicy
	}
	if *slot == nil {
		*slot = &fedTable{paths: map[fedKey]ranked{}, families: map[int]bool{}}
	}
	// A Loc-RIB's flag for "filtered" has the bit of other tables' flag for IPv6.
	f.filtered = f.filtered || loc(h) && h.Flags&bmp.BMP_PEER_FLAG_IPV6 != 0
	t := *slot
	if end, family := update.IsEndOfRib(); end {
		bits := map[bgp.RouteFamily]int{bgp.RF_IPv4_UC: 32, bgp.RF_IPv6_UC: 128}[family]
		if p.ended[bits] = true; bits > 0 {
			t.families[bits], f.families[bits] = true, true
		}
		return nil
	}
	path := ranked{Path: Path{Neighbor: p.Address}}
	path.attributes(update.PathAttributes)
	// FRR puts its own AS before the path, as if it announced it.
	if len(path.ASPath) > 0 && path.ASPath[0] == p.localAS {
		path.ASPath = path.ASPath[1:]
		path.rank.asPathLen--
	}
	if path.sentBy(p.AS); p.localAS != 0 && !loc(h) {
		path.Internal = p.AS == p.localAS
		path.rank.internal = path.Internal
	}
	var withdrawn, reached []bgp.AddrPrefixInterface
	for _, nlri := range update.WithdrawnRoutes {
		withdrawn = append(withdrawn, nlri)
	}
	for _, nlri := range update.NLRI {
		reached = append(reached, nlri)
	}
	for _, attr := range update.PathAttributes {
		switch a := attr.(type) {
		case *bgp.PathAttributeMpReachNLRI:
			reached = append(reached, a.Value...)
		case *bgp.PathAttributeMpUnreachNLRI:
			withdrawn = append(withdrawn, a.Value...)
		}
	}
	for _, nlri := range withdrawn {
		if err := f.put(t, nlri, nil); err != nil {
			return err
		}
	}
	for _, nlri := range reached {
		if err := f.put(t, nlri, &path); err != nil {
			return err
		}
	}
	return nil
}

// put sets the path to a prefix, or withdraws it if there is none.
func (f *Feed) put(t *fedTable, nlri bgp.AddrPrefixInterface, path *ranked) error {
	if nlri.SAFI() != bgp.SAFI_UNICAST || nlri.AFI() != bgp.AFI_IP && nlri.AFI() != bgp.AFI_IP6 {
		return nil
	}
	prefix, err := netip.ParsePrefix(nlri.String())
	if err != nil {
		return err
	}
	key := fedKey{prefix.Masked(), nlri.PathIdentifier()}
	if old, there := t.paths[key]; there {
		f.used -= fedSize(old)
		delete(t.paths, key)
	}
	if path == nil {
		return nil
	}
	one := *path
	one.Prefix = key.prefix
	t.paths[key], t.families[prefix.Addr().BitLen()], f.families[prefix.Addr().BitLen()] = one, true, true
	if f.used += fedSize(one); f.used > maxTable {
		return fmt.Errorf("the paths take more than %d MiB", maxTable>>20)
	}
	return nil
}

// whole reports whether the initial routes of each family that has routes have been fed.
func (p *fed) whole() bool {
	for _, t := range []*fedTable{p.prePolicy, p.postPolicy} {
		if t == nil {
			continue
		}
		for bits := range t.families {
			if !p.ended[bits] {
				return false
			}
		}
	}
	return len(p.ended) > 0
}

func (p *fed) feeds() bool {
	return p.State == StateEstablished || p.State == StateUnknown && (p.prePolicy != nil || p.postPolicy != nil)
}

// Ended reports whether the router has said of each session that is up, and of its Loc-RIB, that
// the initial routes have been fed. Routers need not say that.
func (f *Feed) Ended() bool {
	for _, p := range f.peers {
		if p.feeds() && !p.whole() {
			return false
		}
	}
	return (f.local == nil || f.local.whole()) && (f.local != nil || len(f.peers) > 0)
}

// Unended are the sessions that are up, and the Loc-RIB, that lack the End-of-RIB that the router must send
// (RFC 7854, 5). FRR, BIRD and GoBGP send it, but GoBGP not for its Loc-RIB (View.Endless), and FRR not for
// a session that comes up after the feed has begun: such sessions are late, and so are sessions of which
// nothing was fed. If a Loc-RIB is fed, sessions are not listed.
func (f *Feed) Unended() (missing, late []string) {
	if f.local != nil && f.local.postPolicy != nil {
		if f.local.peerUp && !f.local.whole() {
			missing = append(missing, "the Loc-RIB")
		}
		return missing, nil
	}
	for _, n := range f.Neighbors() {
		switch p := f.peers[n.Address]; {
		case !p.feeds() || p.whole():
		case p.late || p.prePolicy == nil && p.postPolicy == nil:
			late = append(late, n.Address.String())
		default:
			missing = append(missing, n.Address.String())
		}
	}
	return missing, late
}

// Young are the late sessions that came up within a time: more of their routes may come.
func (f *Feed) Young(within time.Duration) []string {
	_, late := f.Unended()
	return slices.DeleteFunc(late, func(a string) bool { return time.Since(f.peers[netip.MustParseAddr(a)].since) >= within })
}

// Unfed are the addresses of peers that the router's configuration has ceased to feed, in order.
func (f *Feed) Unfed() (all []string) {
	for _, a := range slices.SortedFunc(maps.Keys(f.unfed), netip.Addr.Compare) {
		all = append(all, a.String())
	}
	return all
}

// Neighbors are the peers, in order of address: established, idle once their session has ended,
// or of StateUnknown if their session was never told.
func (f *Feed) Neighbors() []Neighbor {
	neighbors := []Neighbor{}
	for _, p := range f.peers {
		neighbors = append(neighbors, p.Neighbor)
	}
	sortNeighbors(neighbors)
	return neighbors
}

// RIB are the paths by prefix, then by preference. If the Loc-RIB is fed, they are its paths, all best.
// Otherwise they are the paths from each peer, after the import policy if these paths are fed, and the best
// ones are computed without knowing whether a next hop can be reached.
//
// A path in the Loc-RIB does not have its neighbour. RIB takes the peer with the address of the next hop,
// else the peer that feeds the same route, else the next hop.
func (f *Feed) RIB() []Path {
	_, tables := f.tables()
	var all []ranked
	for _, t := range tables {
		for _, p := range t.paths {
			all = append(all, p)
		}
	}
	if f.local == nil || f.local.postPolicy == nil {
		return bestOf(all)
	}
	senders := f.senders()
	for i := range all {
		p := &all[i]
		if by, ok := senders[route{p.Prefix, p.NextHop}]; ok {
			p.Neighbor = by
		} else if p.NextHop.IsValid() && !p.NextHop.IsUnspecified() {
			p.Neighbor = p.NextHop
		}
		p.Internal = false
		if peer := f.peers[p.Neighbor]; peer != nil {
			p.Internal = peer.AS == f.local.localAS
		}
	}
	paths := bestOf(all)
	for i := range paths {
		paths[i].Best, paths[i].Multipath = true, true
	}
	return paths
}

// View is the tables of RIB's paths. A family that was fed stays set when its last session ends.
func (f *Feed) View() View {
	view, tables := f.tables()
	for _, t := range tables {
		view.IPv4, view.IPv6 = view.IPv4 || t.families[32], view.IPv6 || t.families[128]
	}
	if len(tables) == 0 {
		view.IPv4, view.IPv6 = f.families[32], f.families[128]
	}
	return view
}

// tables are the tables whose paths RIB returns.
func (f *Feed) tables() (view View, all []*fedTable) {
	if f.local != nil && f.local.postPolicy != nil {
		return View{LocRIB: true, Filtered: f.filtered, Endless: !f.local.peerUp && !f.local.whole()}, []*fedTable{f.local.postPolicy}
	}
	for _, p := range f.peers {
		switch {
		case p.postPolicy != nil:
			all = append(all, p.postPolicy)
		case p.prePolicy != nil:
			all = append(all, p.prePolicy)
			view.Before = true
		}
	}
	return view, all
}

type route struct {
	prefix  netip.Prefix
	nextHop netip.Addr
}

// senders are the peers that have sent routes to another next hop than their own address.
func (f *Feed) senders() map[route]netip.Addr {
	by := map[route]netip.Addr{}
	for _, p := range f.peers {
		for _, t := range []*fedTable{p.prePolicy, p.postPolicy} {
			if t == nil {
				continue
			}
			for _, path := range t.paths {
				if path.NextHop != p.Address && f.peers[path.NextHop] == nil {
					by[route{path.Prefix, path.NextHop}] = p.Address
				}
			}
		}
	}
	return by
}
