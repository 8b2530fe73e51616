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

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// newNode makes a network namespace with the routes of a node: a link, a
// default route with two next hops, and a route that leads nowhere. It
// returns the namespace's path, which is good for the life of the test.
func newNode(t testing.TB) string {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := must.Get(netns.Get())(t)
	defer own.Close()
	ns, err := netns.New() // and enters it
	must.NoError(t, err)
	if err := netns.Set(own); err != nil {
		t.Fatal(err) // and the thread stays locked to the test
	}
	t.Cleanup(func() { ns.Close() })
	h := must.Get(netlink.NewHandleAt(ns, unix.NETLINK_ROUTE))(t)
	defer h.Close()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}
	must.NoError(t, h.LinkAdd(link))
	for _, name := range []string{"peer", "eth0"} {
		must.NoError(t, h.LinkSetUp(must.Get(h.LinkByName(name))(t)))
	}
	eth0 := must.Get(h.LinkByName("eth0"))(t)
	must.NoError(t, h.AddrAdd(eth0, must.Get(netlink.ParseAddr("10.4.94.32/24"))(t)))
	_, all, _ := net.ParseCIDR("0.0.0.0/0")
	_, pods, _ := net.ParseCIDR("10.5.112.0/21")
	for _, r := range []netlink.Route{
		{Dst: all, MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: eth0.Attrs().Index, Gw: net.IPv4(10, 4, 94, 239)},
			{LinkIndex: eth0.Attrs().Index, Gw: net.IPv4(10, 4, 94, 238)},
		}},
		{Dst: pods, Type: unix.RTN_UNREACHABLE, Protocol: unix.RTPROT_STATIC},
	} {
		must.NoError(t, h.RouteAdd(&r))
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(ns))
}

func machineIn(path string) Machine {
	return fakeMachine{netns: func(context.Context) (string, error) { return path, nil }}
}

func TestNodeTables(t *testing.T) {
	routes := must.Get(routesOf(t.Context(), machineIn(newNode(t))))(t)
	got := each.Of(routes, func(r Route) string { return fmt.Sprint(r) })
	if len(routes) != 3 {
		t.Fatalf("routes: %v, want the default, the link and the unreachable one", got)
	}
	if r := routes[0]; r.Prefix.Bits() != 0 || len(r.NextHops) != 2 || r.NextHops[0].Address.String() != "10.4.94.238" || r.NextHops[1].Interface != "eth0" {
		t.Errorf("default route: %+v", r)
	}
	if r := routes[1]; r.Protocol != RouteKernel || r.Source.String() != "10.4.94.32" {
		t.Errorf("connected route: %+v", r)
	}
	if r := routes[2]; r.Type != RouteUnreachable || r.Protocol != RouteStatic {
		t.Errorf("unreachable route: %+v", r)
	}
	// Our own namespace is not the node's.
	own := must.Get(routesOf(t.Context(), machineIn("/proc/self/ns/net")))(t)
	if slices.ContainsFunc(own, func(r Route) bool { return r.Type == RouteUnreachable && r.Prefix == routes[2].Prefix }) {
		t.Errorf("the thread stayed in the node's namespace: %v", own)
	}
}

// A whole collection of node-drain's size: an API server on loopback, and four real tables.
func BenchmarkCollectNetns(b *testing.B) {
	nodes := map[string]Machine{}
	for i := range 4 {
		nodes[fmt.Sprintf("node%d", i)] = machineIn(newNode(b))
	}
	c := open(b, fakeAccess{api: newAPIServer(b, 30), nodes: nodes}, Nodes, CiliumNodes, Pods, NodeTables)
	for b.Loop() {
		if s := c.Collect(b.Context()); len(s.Unavailable()) > 0 {
			b.Fatal(s.Unavailable())
		}
	}
}

func TestInterfaces(t *testing.T) {
	path := newNode(t)
	var seen sightings
	read := func() ([]Interface, error) { return interfacesOf(t.Context(), machineIn(path), &seen) }
	before := must.Get(read())(t)
	ns := must.Get(netns.GetFromPath(path))(t)
	defer ns.Close()
	h := must.Get(netlink.NewHandleAt(ns, unix.NETLINK_ROUTE))(t)
	defer h.Close()
	must.NoError(t, h.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "peer1"}))
	after := must.Get(read())(t)
	eth0 := slices.IndexFunc(after, func(i Interface) bool { return i.Name == "eth0" })
	eth1 := slices.IndexFunc(after, func(i Interface) bool { return i.Name == "eth1" })
	if len(after) != len(before)+2 || eth0 < 0 || eth1 < 0 {
		t.Fatalf("interfaces: %+v, and before %+v", after, before)
	}
	if i := after[eth0]; i.Type != "veth" || !i.Since.IsZero() || len(i.Addresses) == 0 || i.Addresses[0].String() != "10.4.94.32/24" {
		t.Errorf("eth0: %+v", i)
	}
	if i := after[eth1]; i.Since.IsZero() || i.Index <= after[eth0].Index || eth1 < eth0 {
		t.Errorf("eth1: %+v beside eth0 %+v", i, after[eth0])
	}
	// The order is the one in which Go's own list has them, which is Calico's.
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			failed <- err
			return
		}
		all, err := net.Interfaces()
		for i := range all {
			if err == nil && all[i].Name != after[i].Name {
				err = fmt.Errorf("interface %d is %s, and for Go %s", i, after[i].Name, all[i].Name)
			}
		}
		failed <- err
	}()
	must.NoError(t, <-failed)
}
