package router

import (
	"flag"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the programs' configurations to testdata")

// read is an answer of a real program: see testdata/README.md.
func read(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func since1970(seconds int64) time.Time { return time.Unix(seconds, 0).UTC() }

// Both routers had the same peers: 192.0.2.2 (eBGP, AS 64513) and 192.0.2.130 (iBGP, AS
// 64524). The next hop of 10.5.115.0/24 was on no link. BIRD had a static route to
// 10.5.113.0/24, which does not change the best path.
func TestParsePaths(t *testing.T) {
	external := Path{
		NextHop: addr("192.0.2.2"), Neighbor: addr("192.0.2.2"), ASPath: []uint32{64513}, Origin: "igp", LocalPref: 100,
		Best: true, Multipath: true,
	}
	internal := Path{
		NextHop: addr("192.0.2.130"), Neighbor: addr("192.0.2.130"), Origin: "igp", LocalPref: 90, Internal: true,
		Best: true, Multipath: true,
	}
	to := func(prefix string, p Path, changes ...func(*Path)) Path {
		p.Prefix = netip.MustParsePrefix(prefix)
		for _, change := range changes {
			change(&p)
		}
		return p
	}
	notBest := func(p *Path) { p.Best, p.Multipath = false, false }
	both := []Path{
		to("10.5.112.0/24", external),
		to("10.5.112.0/24", internal, notBest),
		to("10.5.113.0/24", external),
		to("10.5.114.0/24", external, func(p *Path) { p.ASPath, p.Origin, p.MED = []uint32{64513, 64998, 64999}, "incomplete", 50 }),
		to("10.5.116.0/24", internal),
	}
	unusable := to("10.5.115.0/24", external, notBest, func(p *Path) { p.NextHop = addr("203.0.113.1") })

	received := func(t *testing.T, paths []Path) []Path {
		for i := range paths {
			if day := paths[i].Received.Format(time.DateOnly); day != "2026-11-24" {
				t.Errorf("%s was received on %s", paths[i].Prefix, day)
			}
			paths[i].Received = time.Time{}
		}
		return paths
	}
	t.Run("FRR", func(t *testing.T) {
		paths, err := parseFRRPaths(read(t, "frr-10.3-rib.json"), since1970)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(slices.Insert(slices.Clone(both), 4, unusable), received(t, paths), byValue); d != "" {
			t.Errorf("paths (-want +got):\n%s", d)
		}
	})
	t.Run("BIRD", func(t *testing.T) {
		sessions, err := parseBIRDSessions(read(t, "bird-2.17-protocols.txt"), birdWhen)
		if err != nil {
			t.Fatal(err)
		}
		paths, err := parseBIRDPaths(read(t, "bird-2.17-routes.txt"), sessions, birdWhen)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(both, received(t, paths), byValue); d != "" {
			t.Errorf("paths (-want +got):\n%s", d)
		}
	})
}

func TestParseNeighbors(t *testing.T) {
	neighbor := func(address string, as uint32, prefixes uint64) Neighbor {
		return Neighbor{
			Address: addr(address), AS: as, RouterID: addr(address), State: StateEstablished,
			HoldTime: 9 * time.Second, Received: prefixes, Accepted: prefixes,
		}
	}
	check := func(t *testing.T, want, got []Neighbor) {
		t.Helper()
		for i := range got {
			if day := got[i].Established.Format(time.DateOnly); got[i].State == StateEstablished && day != "2026-11-24" {
				t.Errorf("the session with %s came up on %s", got[i].Address, day)
			}
			got[i].Established = time.Time{}
		}
		if d := cmp.Diff(want, got, byValue); d != "" {
			t.Errorf("neighbours (-want +got):\n%s", d)
		}
	}
	t.Run("FRR", func(t *testing.T) {
		got, err := parseFRRNeighbors(read(t, "frr-10.3-neighbors.json"), since1970)
		if err != nil {
			t.Fatal(err)
		}
		// FRR counts the path with the unusable next hop too.
		check(t, []Neighbor{neighbor("192.0.2.2", 64513, 4), neighbor("192.0.2.130", 64524, 2)}, got)
	})
	t.Run("BIRD", func(t *testing.T) {
		sessions, err := parseBIRDSessions(read(t, "bird-2.17-protocols.txt"), birdWhen)
		if err != nil {
			t.Fatal(err)
		}
		var got []Neighbor
		for _, s := range sessions {
			got = append(got, s.Neighbor)
		}
		sortNeighbors(got)
		check(t, []Neighbor{neighbor("192.0.2.2", 64513, 3), neighbor("192.0.2.130", 64524, 2)}, got)
	})
	t.Run("without a session", func(t *testing.T) {
		got, err := parseFRRNeighbors(read(t, "frr-10.3-neighbors-down.json"), since1970)
		if err != nil {
			t.Fatal(err)
		}
		check(t, []Neighbor{{Address: addr("192.0.2.2"), AS: 64513, State: "active"}}, got)
		sessions, err := parseBIRDSessions(read(t, "bird-2.17-protocols-down.txt"), birdWhen)
		if err != nil {
			t.Fatal(err)
		}
		if len(sessions) != 1 {
			t.Fatalf("sessions %+v, want one", sessions)
		}
		check(t, []Neighbor{{Address: addr("192.0.2.2"), AS: 64513, State: "active"}}, []Neighbor{sessions[0].Neighbor})
	})
}

// What a program says in place of an answer is an error.
func TestParseRefusals(t *testing.T) {
	sessions := []birdSession{{protocol: "peers0_1", Neighbor: Neighbor{Address: addr("192.0.2.2")}}}
	for _, test := range []struct {
		name string
		err  func() error
		want string
	}{
		{"no BGP", func() error {
			_, err := parseFRRPaths(`{"warning":"Default BGP instance not found"}`, since1970)
			return err
		}, "Default BGP instance not found"},
		{"no JSON", func() error { _, err := parseFRRPaths("% Unknown command", since1970); return err }, "invalid character"},
		{"path without peer", func() error {
			_, err := parseFRRPaths(`{"routes":{"10.0.0.0/8":[{"nexthops":[{"ip":"192.0.2.2"}]}]}}`, since1970)
			return err
		}, "path 0 to 10.0.0.0/8 has no next hop or no peer"},
		{"no BGP at the neighbours", func() error { _, err := parseFRRNeighbors(`{"warning":"no"}`, since1970); return err }, "no"},
		{"time", func() error {
			_, err := parseBIRDSessions("peers0_1 BGP --- up 16:30:05.661 Established\n", birdWhen)
			return err
		}, "line 1 of BIRD's protocols"},
		{"number", func() error {
			_, err := parseBIRDPaths("10.0.0.0/8 unicast [peers0_1 2026-11-24 16:35:45.444073] * (100) [i]\n\tBGP.med: much\n", sessions, birdWhen)
			return err
		}, `line 2 of BIRD's routes: strconv.ParseUint: parsing "much"`},
		{"answer without routes", func() error { _, err := parseFRRPaths("{}", since1970); return err }, "the answer has no routes"},
		{"line that is no route", func() error { _, err := parseBIRDPaths("syntax error\n", sessions, birdWhen); return err }, "line 1 of BIRD's routes: it is no route"},
		{"route that the kernel has not", func() error {
			_, err := parseBIRDPaths("10.0.0.0/8 unicast [peers0_1 2026-11-24 16:35:45.444073] ! (100) [i]\n", sessions, birdWhen)
			return err
		}, "the kernel has refused it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := test.err(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q in it", err, test.want)
			}
		})
	}
}

// An AS_SET counts as one in the length of a path, and its members are listed.
func TestBIRDPathOfSet(t *testing.T) {
	for text, want := range map[string]struct {
		path   []uint32
		length int
	}{
		"64513 {64998 64999} 64514":   {[]uint32{64513, 64998, 64999, 64514}, 3},
		"64513 { 64998 64999 } 64514": {[]uint32{64513, 64998, 64999, 64514}, 3},
		"{64998}":                     {[]uint32{64998}, 1},
		"":                            {nil, 0},
	} {
		var p Path
		var r rank
		if err := p.birdDetail("BGP.as_path: "+text, &r); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(p.ASPath, want.path) || r.asPathLen != want.length {
			t.Errorf("%q: path %v of length %d, want %v of %d", text, p.ASPath, r.asPathLen, want.path, want.length)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"frr-10.3-rib.json", "frr-10.3-neighbors.json", "bird-2.17-routes.txt", "bird-2.17-protocols.txt"} {
		f.Add(read(f, name))
	}
	sessions, err := parseBIRDSessions(read(f, "bird-2.17-protocols.txt"), birdWhen)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parseFRRPaths(text, since1970)
		parseFRRNeighbors(text, since1970)
		parseBIRDSessions(text, birdWhen)
		paths, _ := parseBIRDPaths(text, sessions, birdWhen)
		for i, p := range paths {
			if first := i == 0 || paths[i-1].Prefix != p.Prefix; first && !p.Best && strings.Count(text, " [") == strings.Count(text, " unicast [") {
				t.Errorf("%s has no best path", p.Prefix)
			}
		}
	})
}

// The programs' configurations, from one declaration: an eBGP and an iBGP network, graceful
// restart on one, and a static route with two next hops.
func TestConfigurations(t *testing.T) {
	c := Config{
		AS: 64524, RouterID: addr("192.0.2.1"), Listen: []netip.Addr{addr("192.0.2.1"), addr("192.0.2.129")},
		Peers: []Peers{
			{Prefix: prefix("192.0.2.0/25"), AS: 64513, GracefulRestart: true},
			{Prefix: prefix("192.0.2.128/25"), AS: 64524},
		},
		HoldTimeSeconds: 30,
	}
	statics := []Static{{Prefix: prefix("10.5.113.0/24"), NextHops: []netip.Addr{addr("192.0.2.2"), addr("192.0.2.130")}}}
	bgpd, err := FRRConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	bird, err := birdConf(c, statics)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{"bgpd.conf": bgpd, "bird.conf": bird} {
		if *update {
			if err := os.WriteFile("testdata/"+name, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if d := cmp.Diff(read(t, name), got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	want := []string{"ip route 10.5.113.0/24 192.0.2.2", "ip route 10.5.113.0/24 192.0.2.130"}
	if d := cmp.Diff(want, staticCommands(statics)); d != "" {
		t.Errorf("FRR's static routes (-want +got):\n%s", d)
	}
}

// Times that BIRD prints some microseconds apart are the same, and others are not.
func TestSteady(t *testing.T) {
	var s steady[string]
	at := time.Date(2026, 11, 24, 16, 30, 7, 595_801_000, time.UTC)
	for _, answer := range []struct {
		name         string
		printed, say time.Time
	}{
		{"first", at, at},
		{"later", at.Add(39 * time.Microsecond), at},
		{"earlier", at.Add(-39 * time.Microsecond), at},
		{"on a busy machine", at.Add(1039 * time.Microsecond), at},
		{"a new session", at.Add(time.Second), at.Add(time.Second)},
		{"which stays", at.Add(time.Second + time.Microsecond), at.Add(time.Second)},
	} {
		times := []time.Time{answer.printed}
		steadied(&s, times, func(at *time.Time) (string, *time.Time) { return "peers0_1", at })
		if !times[0].Equal(answer.say) {
			t.Errorf("%s: %s, want %s", answer.name, times[0], answer.say)
		}
	}
	steadied(&s, nil, func(at *time.Time) (string, *time.Time) { return "", at })
	if len(s.last) > 0 {
		t.Errorf("times of a session that has ended are kept: %v", s.last)
	}
}
