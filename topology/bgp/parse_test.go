package bgp

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/topology/must"
)

var byValue = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

// birdBanner is what birdc prints first.
const birdBanner = "BIRD 2.17 ready.\n"

// read is an answer of a real program: see testdata/README.md.
func read(t testing.TB, name string) string {
	t.Helper()
	return string(must.Read(t, "testdata/"+name))
}

// Both routers had the same peers: 192.0.2.2 (eBGP, AS 64513) and 192.0.2.130 (iBGP, AS
// 64524). The next hop of 10.5.115.0/24 was on no link. BIRD had a static route to
// 10.5.113.0/24, which does not change the best path.
func TestParsePaths(t *testing.T) {
	must.Equal(t, "paths", []string{
		"10.5.112.0/24 via 192.0.2.2 from 192.0.2.2 as [64513] best multipath",
		"10.5.112.0/24 via 192.0.2.130 from 192.0.2.130 as [] internal igp 90 0",
		"10.5.113.0/24 via 192.0.2.2 from 192.0.2.2 as [64513] best multipath",
		"10.5.114.0/24 via 192.0.2.2 from 192.0.2.2 as [64513 64998 64999] best multipath incomplete 100 50",
		"10.5.116.0/24 via 192.0.2.130 from 192.0.2.130 as [] best multipath internal igp 90 0",
	}, pathLines(must.Get(BIRDPaths(birdBanner+read(t, "bird-2.17-routes.txt"), birdBanner+read(t, "bird-2.17-protocols.txt")))(t)))
}

func birdTimes(text string) (time.Time, error) {
	return time.Parse("2006-01-02 15:04:05.999999", text)
}

func TestParseNeighbors(t *testing.T) {
	neighbor := func(address string, as uint32, prefixes uint64) Neighbor {
		return Neighbor{Address: addr(address), AS: as, RouterID: addr(address), State: StateEstablished,
			Received: prefixes, Accepted: prefixes}
	}
	check := func(t *testing.T, want, got []Neighbor) {
		t.Helper()
		for i := range got {
			if day := got[i].Established.Format(time.DateOnly); got[i].State == StateEstablished && day != "2026-11-24" {
				t.Errorf("the session with %s came up on %s", got[i].Address, day)
			}
			got[i].Established = time.Time{}
		}
		must.Equal(t, "neighbours", want, got, byValue)
	}
	t.Run("FRR", func(t *testing.T) {
		got := must.Get(FRRNeighbors(read(t, "frr-10.3-neighbors.json")))(t)
		// FRR counts the path with the unusable next hop too.
		check(t, []Neighbor{neighbor("192.0.2.2", 64513, 4), neighbor("192.0.2.130", 64524, 2)}, got)
	})
	t.Run("BIRD", func(t *testing.T) {
		got := must.Get(birdNeighbors(birdBanner+read(t, "bird-2.17-protocols.txt"), birdTimes))(t)
		check(t, []Neighbor{neighbor("192.0.2.2", 64513, 3), neighbor("192.0.2.130", 64524, 2)}, got)
	})
	t.Run("without a session", func(t *testing.T) {
		want := []Neighbor{{Address: addr("192.0.2.2"), AS: 64513, State: "active"}}
		check(t, want, must.Get(FRRNeighbors(read(t, "frr-10.3-neighbors-down.json")))(t))
		check(t, want, must.Get(birdNeighbors(birdBanner+read(t, "bird-2.17-protocols-down.txt"), birdTimes))(t))
	})
}

// An AS_SET counts as one in the length of a path, and its members are listed.
func TestBIRDPathOfSet(t *testing.T) {
	for text, want := range map[string]string{ // the path, and its length
		"64513 {64998 64999} 64514":   "[64513 64998 64999 64514] 3",
		"64513 { 64998 64999 } 64514": "[64513 64998 64999 64514] 3",
		"{64998}":                     "[64998] 1",
		"":                            "[] 0",
	} {
		var p ranked
		must.NoError(t, p.birdDetail("BGP.as_path: "+text))
		must.Equal(t, text, want, fmt.Sprint(p.ASPath, p.rank.asPathLen))
	}
}

func TestAnnounces(t *testing.T) {
	address := netip.MustParseAddr("10.4.94.21")
	session := Neighbor{Address: address, State: StateEstablished, Established: noon, Received: 1}
	changed := func(change func(*Neighbor)) []Neighbor {
		n := session
		change(&n)
		return []Neighbor{{Address: netip.MustParseAddr("10.4.94.22")}, n}
	}
	for _, test := range []struct {
		name      string
		neighbors []Neighbor
		since     time.Time
		up        bool // the session
		announces bool
	}{
		{"no neighbour", nil, time.Time{}, false, false},
		{"whenever it came up", changed(func(*Neighbor) {}), time.Time{}, true, true},
		{"within the same second", changed(func(*Neighbor) {}), noon.Add(900 * time.Millisecond), true, true},
		{"too old", changed(func(*Neighbor) {}), noon.Add(time.Second), true, false},
		{"no route over it", changed(func(n *Neighbor) { n.Received = 0 }), noon, true, false},
		{"not up", changed(func(n *Neighbor) { n.State = "active" }), noon, false, false},
		{"another's", changed(func(n *Neighbor) { n.Address = n.Address.Next().Next() }), noon, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			must.Equal(t, "established", test.up, Established(test.neighbors, address))
			must.Equal(t, "announces", test.announces, Announces(test.neighbors, address, test.since))
		})
	}
}
