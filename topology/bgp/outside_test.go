package bgp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

// FRR had sessions with 198.18.77.3, which announced three prefixes, one with another next
// hop, and with 198.18.77.9, which was down.
func TestFRROutside(t *testing.T) {
	must.Equal(t, "paths", []string{
		"10.5.112.0/24 via 198.18.77.3 from 198.18.77.3 as [64513] best multipath",
		"10.5.113.0/24 via 198.18.77.3 from 198.18.77.3 as [64513] best multipath",
		"10.5.114.0/24 via 198.18.77.8 from 198.18.77.3 as [64513] best multipath",
		"203.0.113.0/24 via 0.0.0.0 from invalid IP as [] best multipath",
	}, pathLines(must.Get(FRRPaths(read(t, "frr-10.3-rib-plain.json")))(t)))
	neighbors, err := FRRNeighbors(read(t, "frr-10.3-neighbors.json"))
	if err != nil || len(neighbors) != 2 || neighbors[0].State != StateEstablished {
		t.Errorf("neighbours %+v, %v, want two with sessions", neighbors, err)
	}
}

// Forms of FRR's answers besides the recorded ones.
func TestFRRForms(t *testing.T) {
	for _, test := range []struct {
		name, path string
		want       string // its neighbour, and the AS path
	}{
		{"AS with dots", `"peerId":"192.0.2.2","path":"1.4 64513"`, "192.0.2.2 [65540 64513]"},
		{"on an interface, by address", `"peerId":"fe80::11","path":"64513"`, "fe80::11 [64513]"},
		{"on an interface, by name", `"peerId":"swp1","path":"64513"`, "192.0.2.7 [64513]"},
		{"imported, with an AS path", `"peerId":"(unspec)","path":"64513"`, "192.0.2.7 [64513]"},
		{"imported, with a VRF", `"peerId":"(unspec)","path":"","nhVrfName":"tenant"`, "192.0.2.7 []"},
		{"the router's own", `"peerId":"(unspec)","path":""`, "invalid IP []"},
		{"an aggregate", `"peerId":"(unspec)","path":"64513","nexthops":[{"ip":"0.0.0.0"}]`, "invalid IP [64513]"},
	} {
		path := `{"bestpath":true,"nexthops":[{"ip":"192.0.2.7"}],` + test.path + `}`
		paths := must.Get(FRRPaths(`{"routes":{"10.0.0.0/8":[` + path + `]}}`))(t)
		must.Equal(t, test.name, test.want, fmt.Sprint(paths[0].Neighbor, paths[0].ASPath))
	}

	neighbors := must.Get(FRRNeighbors(`{"vrfName":"default",
		"swp1":{"bgpNeighborAddr":"fe80::11","remoteAs":"1.4","bgpState":"Established","prefixStats":{"inboundFiltered":3},"addressFamilyInfo":{"ipv4Unicast":{"acceptedPrefixCounter":1}}},
		"192.0.2.7":{"remoteAs":7,"bgpState":"Established","addressFamilyInfo":{"ipv4Unicast":{"acceptedPrefixCounter":2,"routeMapForIncomingAdvertisements":"pods"}}},
		"swp2":{"bgpNeighborAddr":"none","remoteAs":64513,"bgpState":"Idle"}}`))(t)
	for i := range neighbors {
		neighbors[i].Established = time.Time{}
	}
	want := []Neighbor{
		{AS: 64513, State: "idle"},
		{Address: addr("192.0.2.7"), AS: 7, State: StateEstablished, Accepted: 2, Received: 2, MayReject: true},
		{Address: addr("fe80::11"), AS: 1<<16 + 4, State: StateEstablished, Accepted: 1, Received: 4},
	}
	must.Equal(t, "neighbours", want, neighbors, byValue)
}

// Received includes the routes that a filter of BIRD refuses, in both families. Without "import keep filtered" it is
// only known that a filter has refused some.
func TestBIRDFiltered(t *testing.T) {
	text := birdBanner + `Name       Proto      Table      State  Since         Info
p          BGP        ---        up     10:00:00      Established
  BGP state:          Established
    Neighbor address: 192.0.2.2
  Channel ipv4
    Routes:         2 imported, 3 filtered, 1 exported, 2 preferred
  Channel ipv6
    Routes:         1 imported, 0 exported, 1 preferred
    Route change stats:     received   rejected   filtered    ignored   accepted
      Import updates:              4          0          3          0          1
      Import withdraws:            0          0        ---          0          0
`
	neighbors, err := birdNeighbors(text, nil)
	if err != nil || len(neighbors) != 1 || neighbors[0].Accepted != 3 || neighbors[0].Received != 6 || neighbors[0].MayReject {
		t.Errorf("%+v, %v, want 3 of 6 accepted", neighbors, err)
	}
	neighbors, err = birdNeighbors(strings.Replace(text, " 3 filtered,", "", 1), nil)
	if err != nil || len(neighbors) != 1 || neighbors[0].Received != 3 || !neighbors[0].MayReject {
		t.Errorf("%+v, %v, want 3 and perhaps more", neighbors, err)
	}
}

// birdc -r first prints that access is restricted. By default BIRD prints a time of today, or a date.
func TestBIRDOutside(t *testing.T) {
	routes, protocols := read(t, "bird-2.17-routes-short.txt"), read(t, "bird-2.17-protocols-short.txt")
	for _, format := range []struct{ name, now string }{
		{"iso short ms", "10:02:31.789"}, {"older than a day", "2026-11-24"}, {"iso long us", "2026-11-25 10:02:31.789123"}, {"of the operator", "Wed Nov 25 10:02"},
	} {
		t.Run(format.name, func(t *testing.T) {
			routes := strings.ReplaceAll(routes, "10:02:31.789", format.now)
			protocols := strings.ReplaceAll(strings.ReplaceAll(protocols, "10:02:30.689", format.now), "10:02:29.707", format.now)
			must.Equal(t, "paths", []string{"203.0.113.0/24 via 198.18.77.2 from 198.18.77.2 as [64524] best multipath"},
				pathLines(must.Get(BIRDPaths(routes, protocols))(t)))
			neighbors := must.Get(birdNeighbors(protocols, nil))(t)
			up := Neighbor{Address: addr("198.18.77.2"), AS: 64524, RouterID: addr("192.0.2.1"), State: StateEstablished,
				Received: 1, Accepted: 1}
			must.Equal(t, "neighbours", []Neighbor{up, {Address: addr("198.18.77.44"), AS: 64524, State: "active"}}, neighbors, byValue)
		})
	}
}

// Routes of IPv6 have the global address of the next hop, and not the link-local one.
func TestIPv6Outside(t *testing.T) {
	must.Equal(t, "FRR", []string{
		"2001:db8:cb::/48 via :: from invalid IP as [] best multipath",
		"fd00:10:5:112::/64 via 2001:db8:77::3 from 2001:db8:77::3 as [64513] best multipath",
		"fd00:10:5:113::/64 via 2001:db8:77::8 from 2001:db8:77::3 as [64513] best multipath",
	}, pathLines(must.Get(FRRPaths(read(t, "frr-10.3-rib6-plain.json")))(t)))
	must.Equal(t, "BIRD", []string{
		"203.0.113.0/24 via 198.18.77.2 from 198.18.77.2 as [64524] best multipath",
		"2001:db8:cb::/48 via 2001:db8:77::2 from 2001:db8:77::2 as [64524] best multipath",
	}, pathLines(must.Get(BIRDPaths(read(t, "bird-2.17-routes-both.txt"), read(t, "bird-2.17-protocols-both.txt")))(t)))
}

// A path whose next hop cannot be reached is not the best one.
func TestBIRDUnreachable(t *testing.T) {
	routes := strings.Replace(read(t, "bird-2.17-routes-short.txt"), " unicast [", " unreachable [", 1)
	paths, err := BIRDPaths(routes, read(t, "bird-2.17-protocols-short.txt"))
	if err != nil || len(paths) != 1 || paths[0].Best || paths[0].Multipath {
		t.Errorf("%+v, %v, want one path that is not the best", paths, err)
	}
}

// A session that was disabled has no Info, and is a neighbour all the same.
func TestBIRDDisabled(t *testing.T) {
	text := read(t, "bird-2.17-protocols-short.txt")
	text = strings.Replace(text, "start  10:02:29.707  Active        Socket: No route to host\n", "down   10:02:29.707  \n", 1)
	neighbors, err := birdNeighbors(text, nil)
	if err != nil || len(neighbors) != 2 {
		t.Errorf("%+v, %v, want two neighbours", neighbors, err)
	}
}

func TestKernelRoutes(t *testing.T) {
	for file, want := range map[string][]string{
		"ip-route-frr.json": {"0.0.0.0/0 via 198.18.77.1 dev eth0 proto boot metric 0",
			"10.5.112.0/24 via 198.18.77.3 dev eth0 proto bgp metric 20",
			"10.5.113.0/24 via 198.18.77.3 dev eth0 proto static metric 20",
			"10.5.114.0/24 via 198.18.77.8 dev eth0 proto bgp metric 20",
			"198.18.77.0/24 dev eth0 proto kernel metric 0",
			"blackhole 203.0.113.0/24 proto static metric 20"},
		"ip6-route-frr.json": {"2001:db8:77::/64 dev eth0 proto kernel metric 256",
			"fd00:10:5:112::/64 via fe80::c4aa:d5ff:fe4b:b398 dev eth0 proto bgp metric 20",
			"fd00:10:5:113::/64 via 2001:db8:77::8 dev eth0 proto bgp metric 20",
			"fe80::/64 dev eth0 proto kernel metric 256"},
		"ip6-route-bird.json": {"::/0 via 2001:db8:77::1 dev eth0 proto boot metric 1024",
			"2001:db8:77::/64 dev eth0 proto kernel metric 256",
			"2001:db8:99::7/128 via fe80::7 dev eth0 proto static metric 1024",
			"2001:db8:cb::/48 via 2001:db8:77::2 dev eth0 proto bird metric 32",
			"blackhole fd00:10:5:112::/64 proto bird metric 32",
			"fd00:10:5:113::/64 via 2001:db8:77::8 dev eth0 proto bird metric 32",
			"fd00:10:5:200::/64 via 2001:db8:77::7 dev eth0 via 2001:db8:77::8 dev eth0 proto boot metric 1024",
			"unreachable fd00:10:5:201::/64 proto boot metric 1024",
			"fe80::/64 dev eth0 proto kernel metric 256"},
		"ip-route-bird.json": {"0.0.0.0/0 via 198.18.77.1 dev eth0 proto boot metric 0",
			"blackhole 10.5.112.0/24 proto bird metric 32",
			"blackhole 10.5.113.0/24 proto bird metric 32",
			"10.5.114.0/24 via 198.18.77.8 dev eth0 proto bird metric 32",
			"10.5.200.0/24 via 198.18.77.7 dev eth0 via 198.18.77.8 dev eth0 proto boot metric 0",
			"10.5.201.7/32 via 198.18.77.7 dev eth0 proto static metric 0",
			"198.18.77.0/24 dev eth0 proto kernel metric 0",
			"198.18.77.0/24 dev eth0 proto bird metric 32",
			"203.0.113.0/24 via 198.18.77.2 dev eth0 proto bird metric 32"},
	} {
		t.Run(file, func(t *testing.T) {
			ipv4, ipv6 := read(t, file), "[]"
			if strings.HasPrefix(file, "ip6") {
				ipv4, ipv6 = ipv6, ipv4
			}
			must.Equal(t, "routes", want, routesTold(must.Get(KernelRoutes(ipv4, ipv6))(t)))
		})
	}
}

// A route of IPv4 over an unnumbered session has a gateway of IPv6.
func TestKernelRouteViaIPv6(t *testing.T) {
	routes := must.Get(KernelRoutes(`[{"dst":"10.0.0.0/8","via":{"family":"inet6","host":"fe80::1"},"dev":"swp1","protocol":"186","metric":20},
		{"dst":"10.1.0.0/16","protocol":"186","metric":20,"nexthops":[{"via":{"family":"inet6","host":"fe80::2"},"dev":"swp2"},{"gateway":"192.0.2.2","dev":"eth0"}]}]`, "[]"))(t)
	must.Equal(t, "", []string{
		"10.0.0.0/8 via fe80::1 dev swp1 proto bgp metric 20",
		"10.1.0.0/16 via 192.0.2.2 dev eth0 via fe80::2 dev swp2 proto bgp metric 20",
	}, routesTold(routes))
}

// Incomplete answers are errors: a path that is left out would look like a missing route.
func TestOutsideRefusals(t *testing.T) {
	const (
		ready  = "BIRD 2.17.6 ready.\nAccess restricted\n"
		header = ready + "Name       Proto      Table      State  Since         Info\n"
	)
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"vtysh refuses", must.Err(FRRPaths("% Unknown command: show bgp\n")), "refused: % Unknown command: show bgp"},
		{"no BGP", must.Err(FRRPaths(`{"warning":"Default BGP instance not found"}`)), "Default BGP instance not found"},
		{"no VRFs", must.Err(FRRVRFs(`{}`)), "the answer has no vrfs"},
		{"a RIB that is cut off", must.Err(FRRPaths(`{"routes":{"10.0.0.0/8":[]`)), "EOF"},
		{"a RIB and more", must.Err(FRRPaths(`{"routes":{}} {}`)), "there is more after the end of the JSON"},
		{"routes that are none", must.Err(FRRPaths(`{"routes":[]}`)), "want {, got ["},
		{"a FIB that is cut off", must.Err(KernelRoutes(`[{"dst":"10.0.0.0/8"}`, "[]")), "EOF"},
		{"no routes", must.Err(FRRPaths(`{}`)), "the answer has no routes"},
		{"path without a next hop", must.Err(FRRPaths(`{"routes":{"10.0.0.0/8":[{"peerId":"swp1"}]}}`)), `the path to 10.0.0.0/8 from "swp1" has no next hop`},
		{"AS with two dots", must.Err(FRRPaths(`{"routes":{"10.0.0.0/8":[{"peerId":"192.0.2.2","path":"1.2.3","nexthops":[{"ip":"192.0.2.2"}]}]}}`)),
			`AS path "1.2.3" of 10.0.0.0/8`},
		{"neighbours refused", must.Err(FRRNeighbors("no")), `want JSON, got "no"`},
		{"time", must.Err(birdNeighbors(header+"p BGP --- up 16:30:05.661 Established\n  BGP state: Established\n  Neighbor address: 192.0.2.2\n", birdTimes)),
			"protocol p of BIRD: since"},
		{"number", must.Err(BIRDPaths(ready+"10.0.0.0/8 unicast [p 16:35:45.444] * (100) [i]\n\tBGP.med: much\n",
			header+"p BGP --- up 10:00:00 Established\n  Neighbor address: 192.0.2.2\n")), `of BIRD's routes: strconv.ParseUint: parsing "much"`},
		{"route that the kernel has not", must.Err(BIRDPaths(ready+"10.0.0.0/8 unicast [p 16:35:45.444] ! (100) [i]\n", header)), "the kernel has refused it"},
		{"BIRD 3", must.Err(BIRDPaths(ready+"10.0.0.0/8 unicast [p 10:00:00] * (100) [i]\n\tbgp_next_hop: 192.0.2.2\n",
			header+"p BGP --- up 10:00:00 Established\n  Neighbor address: 192.0.2.2\n")), "has no BGP.next_hop, which BIRD 2 prints"},
		{"BIRD 1", must.Err(BIRDPaths(ready+"10.0.0.0/8 via 192.0.2.2 on eth0 [p 10:00] * (100) [i]\n", header)), "it is no route"},
		{"no routes of BIRD", must.Err(BIRDPaths("", header)), `want "BIRD " first, got ""`},
		{"no protocols of BIRD", must.Err(birdNeighbors(ready, nil)), "no table of protocols"},
		{"no routes of ip", must.Err(KernelRoutes("[]", "Object \"route\" is unknown")), "reading the routes of ip(8)"},
		{"names for numbers", must.Err(KernelRoutes(`[{"dst":"10.0.0.0/8","protocol":"bgp"}]`, "[]")), `the route to "10.0.0.0/8"`},
	} {
		t.Run(test.name, func(t *testing.T) { must.Fail(t, test.err, test.want) })
	}
}

func FuzzOutside(f *testing.F) {
	for _, name := range []string{"frr-10.3-rib-plain.json", "bird-2.17-routes-short.txt", "bird-2.17-protocols-short.txt", "ip-route-bird.json", "frr-10.3-rib6-plain.json", "bird-2.17-routes-both.txt", "ip6-route-bird.json"} {
		f.Add(read(f, name))
	}
	f.Fuzz(func(_ *testing.T, text string) {
		FRRPaths(text)
		FRRNeighbors(text)
		FRRVRFs(text)
		BIRDPaths(text, text)
		KernelRoutes(text, text)
	})
}

// FRR tells the state of BFD beside the state of a session; without BFD it tells none.
func TestFRRNeighborsBFD(t *testing.T) {
	there := must.Get(FRRNeighbors(`{
 "192.0.2.1": {"remoteAs": 64513, "bgpState": "Established", "peerBfdInfo": {"type": "single hop", "status": "Up", "lastUpdate": "0:00:00:09"}},
 "192.0.2.2": {"remoteAs": 64513, "bgpState": "Active"}
}`))(t)
	must.Equal(t, "neighbours", 2, len(there))
	must.Equal(t, "BFD", [2]string{"up", ""}, [2]string{there[0].BFD, there[1].BFD})
}
