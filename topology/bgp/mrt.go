package bgp

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
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
	// as "12, the first of type 16, subtype 4"; it is empty if there are none.
	Others string
}

// maxRecord is the size in bytes of the longest record of a dump: a prefix with a path of 4 KiB
// from each of 4,000 peers.
const maxRecord = 16 << 20

// maxTables bounds the tables of a dump: BIRD writes one of each family.
const maxTables = 16

// MRT reads a table dump, with additional paths as well (RFC 8050). It is an error if the dump cannot be
// read to its end, or has two tables of a family. If a table is there several times the last one counts:
// BIRD may append dumps to one file. Records of multicast, and of other address families than IPv4 and
// IPv6 unicast, are left out; Others counts further records.
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
	// families are the families of the paths, by the length of an address in bits.
	families map[int]bool
}

func readMRT(reader *bufio.Reader) (d Dump, err error) {
	tables := map[string]*mrtTable{} // by the name of the view
	var current *mrtTable
	number, others, first := 1, 0, ""
	defer func() {
		if r := recover(); r != nil { // packages bgp and mrt panic at some records that are cut off
			d, err = Dump{}, fmt.Errorf("record %d: it is malformed: %v", number, r)
		}
	}()
	for ; ; number++ {
		header, body, err := mrtRecord(reader)
		if errors.Is(err, io.EOF) {
			break
		}
		kind := mrt.MRTSubTypeTableDumpv2(0)
		if err == nil && header.Type == mrt.TABLE_DUMPv2 {
			kind = mrt.MRTSubTypeTableDumpv2(header.SubType)
		}
		switch {
		case err != nil, passedOver(kind, body):
		case kind == mrt.PEER_INDEX_TABLE:
			var index mrt.PeerIndexTable
			err = index.DecodeFromBytes(body)
			current = &mrtTable{time: header.GetTime().UTC(), peers: index.Peers, left: maxTable, families: map[int]bool{}}
			if tables[index.ViewName] = current; len(tables) > maxTables {
				err = fmt.Errorf("there are more than %d tables", maxTables)
			}
		case slices.Contains(unicast, kind):
			err = current.add(kind, body)
		default:
			others++
			first = cmp.Or(first, fmt.Sprintf("type %d, subtype %d", header.Type, header.SubType))
		}
		if err != nil {
			return Dump{}, fmt.Errorf("record %d: %w", number, err)
		}
	}
	d, err = dumpOf(tables)
	if others > 0 {
		d.Others = fmt.Sprintf("%d, the first of %s", others, first)
	}
	return d, err
}

var (
	unicast = []mrt.MRTSubTypeTableDumpv2{mrt.RIB_IPV4_UNICAST, mrt.RIB_IPV6_UNICAST, mrt.RIB_IPV4_UNICAST_ADDPATH,
		mrt.RIB_IPV6_UNICAST_ADDPATH}
	noRoute = []mrt.MRTSubTypeTableDumpv2{mrt.RIB_IPV4_MULTICAST, mrt.RIB_IPV6_MULTICAST, mrt.RIB_IPV4_MULTICAST_ADDPATH,
		mrt.RIB_IPV6_MULTICAST_ADDPATH, mrt.GEO_PEER_TABLE}
)

// passedOver reports whether a record is of multicast, or a RIB_GENERIC (RFC 6396, 4.3.3) of another address family than
// IPv4 and IPv6 unicast.
func passedOver(kind mrt.MRTSubTypeTableDumpv2, body []byte) bool {
	if kind != mrt.RIB_GENERIC && kind != mrt.RIB_GENERIC_ADDPATH || len(body) < 7 {
		return slices.Contains(noRoute, kind)
	}
	afi, safi := binary.BigEndian.Uint16(body[4:]), body[6] // after the sequence number
	return safi != bgp.SAFI_UNICAST || afi != bgp.AFI_IP && afi != bgp.AFI_IP6
}

func (t *mrtTable) add(kind mrt.MRTSubTypeTableDumpv2, body []byte) error {
	if t == nil {
		return errors.New("a path is before the PEER_INDEX_TABLE")
	}
	prefix, entries, err := ribEntries(kind, body)
	if err != nil {
		return err
	}
	t.families[prefix.Addr().BitLen()] = true
	for _, entry := range entries {
		if int(entry.PeerIndex) >= len(t.peers) {
			return fmt.Errorf("a path is of peer %d, and the table has %d", entry.PeerIndex, len(t.peers))
		}
		peer := t.peers[entry.PeerIndex]
		p := ranked{Path: Path{Prefix: prefix}}
		if a := address(peer.IpAddress); !a.IsUnspecified() { // the router's own paths have the peer 0.0.0.0
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

// ribEntries reads a record with the paths to a prefix (RFC 6396, 4.3.2; RFC 8050, 4.3). FRR writes the whole
// MP_REACH_NLRI of an IPv6 path, where others write its next hop alone (4.3.4): read as theirs, the hop is empty.
func ribEntries(kind mrt.MRTSubTypeTableDumpv2, body []byte) (prefix netip.Prefix, entries []*mrt.RibEntry, err error) {
	family, addPath := bgp.RF_IPv4_UC, kind == mrt.RIB_IPV4_UNICAST_ADDPATH || kind == mrt.RIB_IPV6_UNICAST_ADDPATH
	if kind == mrt.RIB_IPV6_UNICAST || kind == mrt.RIB_IPV6_UNICAST_ADDPATH {
		family = bgp.RF_IPv6_UC
	}
	nlri, err := bgp.NewPrefixFromRouteFamily(bgp.RouteFamilyToAfiSafi(family))
	if err != nil {
		return prefix, nil, err
	}
	body = body[4:] // after the sequence number
	if err := nlri.DecodeFromBytes(body); err != nil {
		return prefix, nil, err
	}
	if prefix, err = netip.ParsePrefix(nlri.String()); err != nil {
		return prefix, nil, err
	}
	body = body[nlri.Len():]
	number := binary.BigEndian.Uint16(body)
	body = body[2:]
	for range number {
		entry := mrt.NewRibEntry(0, 0, 0, nil, addPath)
		rest, err := entry.DecodeFromBytes(body, nlri)
		if slices.ContainsFunc(entry.PathAttributes, noHop) {
			entry = mrt.NewRibEntry(0, 0, 0, nil, addPath)
			rest, err = entry.DecodeFromBytes(body)
		}
		if err != nil {
			return prefix, nil, err
		}
		body, entries = rest, append(entries, entry)
	}
	if len(body) > 0 {
		return prefix, nil, fmt.Errorf("it has %d bytes more than its paths", len(body))
	}
	return prefix.Masked(), entries, nil
}

func noHop(attr bgp.PathAttributeInterface) bool {
	reach, ok := attr.(*bgp.PathAttributeMpReachNLRI)
	return ok && reach.Nexthop == nil
}

// dumpOf is the dump of some tables, with the time of the oldest.
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

func mrtRecord(r io.Reader) (*mrt.MRTHeader, []byte, error) {
	head := make([]byte, mrt.MRT_COMMON_HEADER_LEN)
	if _, err := io.ReadFull(r, head); err != nil {
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
	_, err := io.ReadFull(r, body)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, nil, fmt.Errorf("it ends early: %w", err)
	}
	return header, body, nil
}

// sentBy sets whether a path was learned over iBGP from a peer of an AS. The router's own AS is not known:
// an eBGP peer puts its AS before the AS path.
func (p *ranked) sentBy(as uint32) {
	p.Internal = p.Neighbor.IsValid() && (len(p.ASPath) == 0 || p.ASPath[0] != as)
	p.rank.local, p.rank.internal = !p.Neighbor.IsValid(), p.Internal
}
