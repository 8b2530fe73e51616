//go:build lab

package snapshot

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/relapse-dev/relapse/topology/router"
)

// newNode makes a network namespace with the routes of a node: a link, a
// default route with two next hops, and a route that leads nowhere. It
// returns the namespace's path, which is good for the life of the test.
func newNode(t testing.TB) string {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	ns, err := netns.New() // and enters it
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.Set(own); err != nil {
		t.Fatal(err) // and the thread stays locked to the test
	}
	t.Cleanup(func() { ns.Close() })
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
	if err := h.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"peer", "eth0"} {
		l, err := h.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	eth0, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr("10.4.94.32/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.AddrAdd(eth0, a); err != nil {
		t.Fatal(err)
	}
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	_, pods, _ := net.ParseCIDR("10.5.112.0/21")
	for _, r := range []netlink.Route{
		{Dst: all, MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: eth0.Attrs().Index, Gw: net.IPv4(10, 4, 94, 239)},
			{LinkIndex: eth0.Attrs().Index, Gw: net.IPv4(10, 4, 94, 238)},
		}},
		{Dst: pods, Type: unix.RTN_UNREACHABLE, Protocol: unix.RTPROT_STATIC},
	} {
		if err := h.RouteAdd(&r); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns))
}

func at(path string) RouteReader {
	return NetnsRoutes(func(context.Context) (string, error) { return path, nil })
}

func TestNetnsRoutes(t *testing.T) {
	routes, err := at(newNode(t))(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range routes {
		got = append(got, r.String())
	}
	if len(routes) != 3 {
		t.Fatalf("routes: %v, want the default, the link and the unreachable one", got)
	}
	if r := routes[0]; r.Prefix.Bits() != 0 || len(r.NextHops) != 2 || r.NextHops[0].Address.String() != "10.4.94.238" || r.NextHops[1].Interface != "eth0" {
		t.Errorf("default route: %s", r)
	}
	if r := routes[1]; r.Protocol != router.ProtocolKernel || r.Source.String() != "10.4.94.32" {
		t.Errorf("connected route: %s", r)
	}
	if r := routes[2]; r.Type != router.TypeUnreachable || r.Protocol != router.ProtocolStatic {
		t.Errorf("unreachable route: %s", r)
	}
	// Our own namespace is not the node's.
	own, err := at("/proc/self/ns/net")(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(own, func(r Route) bool { return r.Type == router.TypeUnreachable && r.Prefix == routes[2].Prefix }) {
		t.Errorf("the thread stayed in the node's namespace: %v", own)
	}
}

// A whole collection of node-drain's size: an API server on loopback, and
// four real tables.
func BenchmarkCollectNetns(b *testing.B) {
	cluster, err := NewCluster(newAPIServer(b, 30))
	if err != nil {
		b.Fatal(err)
	}
	c := Collector{Kubernetes: cluster, Nodes: map[string]RouteReader{}}
	for i := range 4 {
		c.Nodes[fmt.Sprintf("node%d", i)] = at(newNode(b))
	}
	for b.Loop() {
		if s := c.Collect(b.Context()); len(s.Unread()) > 0 {
			b.Fatal(s.Unread())
		}
	}
}
