package bgp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/osrg/gobgp/v3/pkg/packet/mrt"

	"github.com/relapse-dev/relapse/topology/must"
)

// pathLines lists paths, one in a line, with origin, preference and MED unless they are igp, 100 and 0.
func pathLines(paths []Path) (lines []string) {
	for _, p := range paths {
		flags := ""
		for _, flag := range []struct {
			name string
			set  bool
		}{{"best", p.Best}, {"multipath", p.Multipath}, {"internal", p.Internal}} {
			if flag.set {
				flags += " " + flag.name
			}
		}
		if p.Origin != "igp" || p.LocalPref != defaultLocalPref || p.MED != 0 {
			flags += fmt.Sprintf(" %s %d %d", p.Origin, p.LocalPref, p.MED)
		}
		lines = append(lines, fmt.Sprintf("%s via %s from %s as %v%s", p.Prefix, p.NextHop, p.Neighbor, p.ASPath, flags))
	}
	return lines
}

func peersTold(neighbors []Neighbor) (lines []string) {
	for _, n := range neighbors {
		lines = append(lines, fmt.Sprintf("%s AS %d %s", n.Address, n.AS, n.State))
	}
	return lines
}

func routesTold(routes []Route) (lines []string) {
	for _, r := range routes {
		lines = append(lines, r.String())
	}
	return lines
}

// Each dump is of a real program: see testdata/README.md.
func TestMRT(t *testing.T) {
	bird := []string{
		"10.5.112.0/24 via invalid IP from invalid IP as [] best multipath",
		"10.5.113.0/24 via invalid IP from invalid IP as [] best multipath",
		"203.0.113.0/24 via 198.18.77.2 from 198.18.77.2 as [64524] best multipath",
		"2001:db8:cb::/48 via 2001:db8:77::2 from 2001:db8:77::2 as [64524] best multipath",
		"fd00:10:5:112::/64 via invalid IP from invalid IP as [] best multipath",
		"fd00:10:5:113::/64 via invalid IP from invalid IP as [] best multipath",
	}
	peers := []string{"198.18.77.2 AS 64524 established", "2001:db8:77::2 AS 64524 established", "2001:db8:77::44 AS 64524 unknown"}
	for _, test := range []struct {
		file         string
		paths, peers []string
	}{
		{"frr-10.3.mrt", []string{
			"10.5.112.0/24 via 198.18.77.3 from 198.18.77.3 as [64513] best multipath",
			"10.5.113.0/24 via 198.18.77.8 from 198.18.77.3 as [64513] best multipath",
			"203.0.113.0/24 via 0.0.0.0 from invalid IP as [] best multipath",
			"2001:db8:cb::/48 via :: from invalid IP as [] best multipath",
			"fd00:10:5:112::/64 via 2001:db8:77::3 from 2001:db8:77::3 as [64513] best multipath",
			"fd00:10:5:113::/64 via 2001:db8:77::8 from 2001:db8:77::3 as [64513] best multipath",
		}, []string{"198.18.77.3 AS 64513 established", "2001:db8:77::3 AS 64513 established", "2001:db8:77::9 AS 64513 unknown"}},
		{"bird-2.17.mrt", bird, peers},
		{"bird-2.17-addpath.mrt", bird, peers},
	} {
		t.Run(test.file, func(t *testing.T) {
			d := must.Get(MRT(strings.NewReader(read(t, test.file))))(t)
			must.Equal(t, "paths", test.paths, pathLines(d.Paths))
			must.Equal(t, "peers", test.peers, peersTold(d.Neighbors))
			must.Equal(t, "day, IPv4, IPv6", [3]any{"2026-11-25", true, true}, [3]any{d.Time.Format(time.DateOnly), d.IPv4, d.IPv6})
		})
	}
}

func record(t testing.TB, kind mrt.MRTSubTypeTableDumpv2, body mrt.Body) []byte {
	t.Helper()
	m := must.Get(mrt.NewMRTMessage(1767323045, mrt.TABLE_DUMPv2, kind, body))(t)
	return must.Get(m.Serialize())(t)
}

// ribOf is the record of a prefix with paths of peers, by their indexes in the table.
func ribOf(t testing.TB, prefix string, length uint8, peers ...uint16) []byte {
	t.Helper()
	var entries []*mrt.RibEntry
	for _, peer := range peers {
		entries = append(entries, mrt.NewRibEntry(peer, 0, 0, []bgp.PathAttributeInterface{
			bgp.NewPathAttributeOrigin(0), sequence(64513, uint32(peer)+1), bgp.NewPathAttributeNextHop("192.0.2.2"),
		}, false))
	}
	return record(t, mrt.RIB_IPV4_UNICAST, mrt.NewRib(0, bgp.NewIPAddrPrefix(length, prefix), entries))
}

func indexOf(t testing.TB, view string) []byte {
	t.Helper()
	return record(t, mrt.PEER_INDEX_TABLE, mrt.NewPeerIndexTable("192.0.2.1", view, []*mrt.Peer{
		mrt.NewPeer("192.0.2.2", "192.0.2.2", 64513, true), mrt.NewPeer("192.0.2.3", "192.0.2.3", 64524, true),
		mrt.NewPeer("0.0.0.0", "0.0.0.0", 0, true), mrt.NewPeer("192.0.2.4", "192.0.2.4", 64513, true),
	}))
}

// The best path of a dump is computed. If a table is there twice, the last one counts.
func TestMRTTables(t *testing.T) {
	text := bytes.Join([][]byte{indexOf(t, ""), ribOf(t, "10.9.0.0", 16, 0), indexOf(t, ""), ribOf(t, "10.5.112.0", 24, 1, 0), ribOf(t, "10.5.113.0", 24, 2)}, nil)
	d := must.Get(MRT(bytes.NewReader(text)))(t)
	must.Equal(t, "", []string{
		"10.5.112.0/24 via 192.0.2.2 from 192.0.2.2 as [64513 1] best multipath",
		"10.5.112.0/24 via 192.0.2.2 from 192.0.2.3 as [64513 2] internal",
		"10.5.113.0/24 via 192.0.2.2 from invalid IP as [64513 3] best multipath",
	}, pathLines(d.Paths))
	must.Equal(t, "", []string{"192.0.2.2 AS 64513 established", "192.0.2.3 AS 64524 established", "192.0.2.4 AS 64513 unknown"},
		peersTold(d.Neighbors))
}

func TestMRTRefusals(t *testing.T) {
	index, rib := indexOf(t, ""), ribOf(t, "10.5.112.0", 24, 0)
	long := bytes.Clone(index)
	copy(long[8:], []byte{0xff, 0xff, 0xff, 0xff})
	for _, test := range map[string]struct {
		text []byte
		want string
	}{
		"empty":                 {nil, "it has no PEER_INDEX_TABLE"},
		"text":                  {[]byte("no dump at all, but some text"), "record 1: it has "},
		"cut off":               {index[:len(index)-1], "record 1: it ends early: unexpected EOF"},
		"cut off in a header":   {append(bytes.Clone(index), 0, 0), "record 2: unexpected EOF"},
		"a length":              {long, "record 1: it has 4294967295 bytes, and at most 16777216 are read"},
		"no table":              {rib, "record 1: a path is before the PEER_INDEX_TABLE"},
		"a peer":                {append(bytes.Clone(index), ribOf(t, "10.5.112.0", 24, 7)...), "record 2: a path is of peer 7, and the table has 4"},
		"a record of 4 bytes":   {append(bytes.Clone(index), 0, 0, 0, 0, 0, 13, 0, 2, 0, 0, 0, 4, 0, 0, 0, 0), "record 2: "},
		"bytes after the paths": {append(bytes.Clone(index), longer(rib, 9)...), "record 2: it has 9 bytes more than its paths"},
		"two tables of a VRF":   {bytes.Join([][]byte{index, rib, indexOf(t, "vrf"), rib}, nil), "two tables have routes of one family"},
	} {
		must.Fail(t, must.Err(MRT(bytes.NewReader(test.text))), test.want)
	}
}

// longer is a record with more bytes at its end.
func longer(record []byte, by int) []byte {
	all := append(bytes.Clone(record), make([]byte, by)...)
	binary.BigEndian.PutUint32(all[8:], uint32(len(all)-mrt.MRT_COMMON_HEADER_LEN))
	return all
}

// Others tells further records of a dump that may change its routes.
func TestMRTOthers(t *testing.T) {
	raw := func(kind, subtype uint16, body ...byte) []byte {
		return append([]byte{0, 0, 0, 0, byte(kind >> 8), byte(kind), byte(subtype >> 8), byte(subtype), 0, 0, 0, byte(len(body))}, body...)
	}
	for _, test := range []struct {
		name, want string
		records    [][]byte
	}{
		{"none", "", nil},
		{"multicast", "", [][]byte{raw(13, 3), raw(13, 11)}},
		{"VPN routes", "", [][]byte{raw(13, 6, 0, 0, 0, 1, 0, 1, 128)}},
		{"unicast routes in a generic record", "1, the first of type 13, subtype 6", [][]byte{raw(13, 6, 0, 0, 0, 1, 0, 1, 1)}},
		{"an unknown subtype", "1, the first of type 13, subtype 77", [][]byte{raw(13, 77)}},
		{"updates and a table of version 1", "3, the first of type 16, subtype 4", [][]byte{raw(16, 4), raw(12, 1), raw(16, 4)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := bytes.Join(append([][]byte{indexOf(t, ""), ribOf(t, "10.5.112.0", 24, 0)}, test.records...), nil)
			d := must.Get(MRT(bytes.NewReader(text)))(t)
			must.Equal(t, "others", test.want, d.Others)
			must.Equal(t, "paths", 1, len(d.Paths))
		})
	}
}

func FuzzMRT(f *testing.F) {
	for _, name := range []string{"frr-10.3.mrt", "bird-2.17.mrt", "bird-2.17-addpath.mrt"} {
		f.Add([]byte(read(f, name)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := MRT(bytes.NewReader(text))
		if err != nil && len(d.Paths) > 0 {
			t.Errorf("%d paths and error %v", len(d.Paths), err)
		}
		for _, p := range d.Paths {
			if !p.Prefix.IsValid() {
				t.Errorf("%+v", p)
			}
		}
	})
}
