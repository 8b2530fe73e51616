package bgp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/osrg/gobgp/v3/pkg/packet/mrt"
)

// Dump is a table dump in MRT (RFC 6396, TABLE_DUMP_V2).
type Dump struct {
	// Time is when it was written, to the second.
	Time time.Time
	// Paths are in order of prefix, then of preference. Best and Multipath are computed, since a
	// dump does not have them: whether a next hop can be reached is not known.
	Paths []Path
	// Neighbors are the peers of the dump, in order of address: established if they have a path,
	// else of StateUnknown.
	Neighbors []Neighbor
	// IPv4 and IPv6 are set if the dump has a route of that family.
	IPv4, IPv6 bool
	// Others says which further records the dump has that may change routes and are not read, such
	// as "12 of type 16, subtype 4"; it is empty if there are none.
	Others string
}

// maxRecord is the size in bytes of the longest record of a dump: a prefix with a path of 4 KiB
// from each of 4,000 peers.
const maxRecord = 16 << 20

// maxTables bounds the tables of a dump: BIRD writes one of each family.
const maxTables = 16

// maxKinds bounds the kinds of records that Others names.
const maxKinds = 32

// MRT reads a table dump, with additional paths as well (RFC 8050). A dump that cannot be read to
// its end is an error, and so is one with two tables of a family. Of a table that is there several
// times the last one counts: BIRD may append them to one file. Records of multicast, and of other
// address families than IPv4 and IPv6 unicast, are left out; other ones are told in Others.
func MRT(from io.Reader) (Dump, error) {
	d, err := readMRT(bufio.NewReaderSize(from, 1<<16))
	if err != nil {
		return Dump{}, fmt.Errorf("reading the MRT dump: %w", err)
	}
	return d, nil
}

// mrtTable is one table of a dump.
type mrtTable struct {
	time  time.Time
	peers []*mrt.Peer
	paths []ranked
	left  budget
	// families are those of the paths, by the length of an address in bits.
	families map[int]bool
}

func readMRT(in *bufio.Reader) (Dump, error) {
	tables := map[string]*mrtTable{}          // by the name of the view
	others, further := map[[2]uint16]int{}, 0 // by type and subtype
	count := func(h *mrt.MRTHeader) {
		kind := [2]uint16{uint16(h.Type), h.SubType}
		if _, known := others[kind]; known || len(others) < maxKinds {
			others[kind]++
		} else {
			further++
		}
	}
	var current *mrtTable
	for number := 1; ; number++ {
		header, body, err := mrtRecord(in)
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil:
		case header.Type != mrt.TABLE_DUMPv2:
			count(header)
		default:
			switch mrt.MRTSubTypeTableDumpv2(header.SubType) {
			case mrt.PEER_INDEX_TABLE:
				var message *mrt.MRTMessage
				if message, err = parseMRT(header, body); err == nil {
					index := message.Body.(*mrt.PeerIndexTable)
					current = &mrtTable{time: header.GetTime().UTC(), peers: index.Peers, left: maxTable, families: map[int]bool{}}
					if tables[index.ViewName] = current; len(tables) > maxTables {
						err = fmt.Errorf("there are more than %d tables", maxTables)
					}
				}
			case mrt.RIB_IPV4_UNICAST, mrt.RIB_IPV4_UNICAST_ADDPATH, mrt.RIB_IPV6_UNICAST, mrt.RIB_IPV6_UNICAST_ADDPATH:
				err = current.add(header, body)
			case mrt.RIB_IPV4_MULTICAST, mrt.RIB_IPV6_MULTICAST, mrt.RIB_IPV4_MULTICAST_ADDPATH, mrt.RIB_IPV6_MULTICAST_ADDPATH, mrt.GEO_PEER_TABLE:
			default:
				if !otherFamily(mrt.MRTSubTypeTableDumpv2(header.SubType), body) {
					count(header)
				}
			}
		}
		if err != nil {
			return Dump{}, fmt.Errorf("record %d: %w", number, err)
		}
	}
	d, err := dumpOf(tables)
	var told []string
	for _, kind := range slices.SortedFunc(maps.Keys(others), func(a, b [2]uint16) int { return slices.Compare(a[:], b[:]) }) {
		told = append(told, fmt.Sprintf("%d of type %d, subtype %d", others[kind], kind[0], kind[1]))
	}
	if further > 0 {
		told = append(told, fmt.Sprintf("%d of further types", further))
	}
	d.Others = strings.Join(told, ", ")
	return d, err
}

// otherFamily reports whether a record is a RIB_GENERIC (RFC 6396, 4.3.3) of another address family than
// IPv4 and IPv6 unicast.
func otherFamily(kind mrt.MRTSubTypeTableDumpv2, body []byte) bool {
	if kind != mrt.RIB_GENERIC && kind != mrt.RIB_GENERIC_ADDPATH || len(body) < 7 {
		return false
	}
	afi, safi := uint16(body[4])<<8|uint16(body[5]), body[6] // after the sequence number
	return safi != bgp.SAFI_UNICAST || afi != bgp.AFI_IP && afi != bgp.AFI_IP6
}

func (t *mrtTable) add(header *mrt.MRTHeader, body []byte) error {
	if t == nil {
		return errors.New("a path is before the PEER_INDEX_TABLE")
	}
	prefix, entries, err := ribEntries(mrt.MRTSubTypeTableDumpv2(header.SubType), body)
	if err != nil {
		return err
	}
	t.families[prefix.Addr().BitLen()] = true
	for _, entry := range entries {
		if int(entry.PeerIndex) >= len(t.peers) {
			return fmt.Errorf("a path is of peer %d, and the table has %d", entry.PeerIndex, len(t.peers))
		}
		peer := t.peers[entry.PeerIndex]
		p := ranked{Path: Path{Prefix: prefix, Received: time.Unix(int64(entry.OriginatedTime), 0).UTC()}}
		if a := address(peer.IpAddress); !a.IsUnspecified() { // the router's own paths are of 0.0.0.0
			p.Neighbor = a
		}
		p.attributes(entry.PathAttributes)
		p.sentBy(peer.AS)
		if err := t.left.take(p.Path); err != nil {
			return err
		}
		t.paths = append(t.paths, p)
	}
	return nil
}

// errShort is that of a record, or a message, that is shorter than it says.
var errShort = errors.New("it is shorter than it says")

// ribEntries reads a record with the paths to a prefix (RFC 6396, 4.3.2; RFC 8050, 4.3).
//
// Package mrt reads them too, but not those of FRR, which has the whole MP_REACH_NLRI of a path of
// IPv6 in place of its next hop alone (4.3.4): with that, no path has a next hop.
func ribEntries(kind mrt.MRTSubTypeTableDumpv2, body []byte) (prefix netip.Prefix, entries []mrt.RibEntry, err error) {
	defer func() {
		if r := recover(); r != nil { // of package bgp
			err = fmt.Errorf("it is malformed: %v", r)
		}
	}()
	take := func(n int) []byte {
		if n > len(body) {
			err, n = errShort, 0
		}
		taken := body[:n]
		body = body[n:]
		return taken
	}
	number := func(bytes int) (n int) {
		for _, b := range take(bytes) {
			n = n<<8 | int(b)
		}
		return n
	}
	v6 := kind == mrt.RIB_IPV6_UNICAST || kind == mrt.RIB_IPV6_UNICAST_ADDPATH
	addPath := kind == mrt.RIB_IPV4_UNICAST_ADDPATH || kind == mrt.RIB_IPV6_UNICAST_ADDPATH
	take(4) // a sequence number
	bits, raw := number(1), make([]byte, 4)
	if v6 {
		raw = make([]byte, 16)
	}
	if bits > 8*len(raw) {
		return prefix, nil, fmt.Errorf("a prefix has %d bits", bits)
	}
	copy(raw, take((bits+7)/8))
	a, _ := netip.AddrFromSlice(raw)
	prefix = netip.PrefixFrom(a, bits).Masked()
	var implicit bgp.AddrPrefixInterface = bgp.NewIPAddrPrefix(uint8(bits), a.String())
	if v6 {
		implicit = bgp.NewIPv6AddrPrefix(uint8(bits), a.String())
	}
	for range number(2) {
		entry := mrt.RibEntry{PeerIndex: uint16(number(2)), OriginatedTime: uint32(number(4))}
		if addPath {
			take(4) // the identifier of the path
		}
		for attrs := take(number(2)); err == nil && len(attrs) > 0; {
			attr, wrong := bgp.GetPathAttribute(attrs)
			if wrong != nil {
				return prefix, nil, wrong
			}
			var options []*bgp.MarshallingOption
			if value := valueOf(attrs); bgp.BGPAttrType(attrs[1]) == bgp.BGP_ATTR_TYPE_MP_REACH_NLRI && len(value) > 0 && value[0] != 0 {
				options = append(options, &bgp.MarshallingOption{ImplicitPrefix: implicit})
			}
			if wrong := attr.DecodeFromBytes(attrs, options...); wrong != nil {
				return prefix, nil, wrong
			}
			if attr.Len() > len(attrs) {
				return prefix, nil, errShort
			}
			attrs = attrs[attr.Len():]
			entry.PathAttributes = append(entry.PathAttributes, attr)
		}
		if err != nil {
			return prefix, nil, err
		}
		entries = append(entries, entry)
	}
	if err == nil && len(body) > 0 {
		return prefix, nil, fmt.Errorf("it has %d bytes more than its paths", len(body))
	}
	return prefix, entries, err
}

// valueOf is the value of the first of some attributes.
func valueOf(attrs []byte) []byte {
	header := 3
	if bgp.BGPAttrFlag(attrs[0])&bgp.BGP_ATTR_FLAG_EXTENDED_LENGTH != 0 {
		header = 4
	}
	return attrs[min(header, len(attrs)):]
}

// dumpOf is what some tables come to. Its time is that of the oldest.
func dumpOf(tables map[string]*mrtTable) (d Dump, err error) {
	if len(tables) == 0 {
		return Dump{}, errors.New("it has no PEER_INDEX_TABLE: expected a table dump of version 2")
	}
	var all []ranked
	neighbors := map[netip.Addr]Neighbor{}
	for _, t := range tables {
		if d.IPv4 && t.families[32] || d.IPv6 && t.families[128] {
			return Dump{}, errors.New("two tables have routes of one family: expected those of one router and VRF")
		}
		d.IPv4, d.IPv6 = d.IPv4 || t.families[32], d.IPv6 || t.families[128]
		if d.Time.IsZero() || t.time.Before(d.Time) {
			d.Time = t.time
		}
		speaks := map[netip.Addr]bool{}
		for _, p := range t.paths {
			speaks[p.Neighbor] = true
		}
		for _, p := range t.peers {
			a := address(p.IpAddress)
			if !a.IsValid() || a.IsUnspecified() || neighbors[a].State == StateEstablished {
				continue
			}
			neighbors[a] = Neighbor{Address: a, AS: p.AS, State: StateUnknown}
			if speaks[a] {
				neighbors[a] = Neighbor{Address: a, AS: p.AS, State: StateEstablished, RouterID: address(p.BgpId)}
			}
		}
		all = append(all, t.paths...)
	}
	d.Neighbors = slices.AppendSeq([]Neighbor{}, maps.Values(neighbors))
	sortNeighbors(d.Neighbors)
	d.Paths = bestOf(all)
	return d, nil
}

func mrtRecord(in io.Reader) (*mrt.MRTHeader, []byte, error) {
	head := make([]byte, mrt.MRT_COMMON_HEADER_LEN)
	if _, err := io.ReadFull(in, head); err != nil {
		return nil, nil, err // io.EOF at the end of the last record alone
	}
	header := &mrt.MRTHeader{}
	if err := header.DecodeFromBytes(head); err != nil {
		return nil, nil, err
	}
	if header.Len > maxRecord {
		return nil, nil, fmt.Errorf("it has %d bytes, and at most %d are read", header.Len, maxRecord)
	}
	body := make([]byte, header.Len)
	if _, err := io.ReadFull(in, body); err != nil {
		return nil, nil, fmt.Errorf("it ends early: %w", noEOF(err))
	}
	return header, body, nil
}

// noEOF makes the end of a file within a record an error of its own.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// parseMRT is mrt.ParseMRTBody, which panics for some records that are cut off.
func parseMRT(header *mrt.MRTHeader, body []byte) (message *mrt.MRTMessage, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it is malformed: %v", r)
		}
	}()
	return mrt.ParseMRTBody(header, body)
}

// sentBy sets whether a path was learned over iBGP from a peer of an AS, where the router's own is
// not known: an eBGP peer puts its AS before the AS path.
func (p *ranked) sentBy(as uint32) {
	p.Internal = p.Neighbor.IsValid() && (len(p.ASPath) == 0 || p.ASPath[0] != as)
	p.rank.local, p.rank.internal = !p.Neighbor.IsValid(), p.Internal
}
