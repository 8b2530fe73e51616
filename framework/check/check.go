// Package check has conditions that the checks of several incidents assert.
package check

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Routes asserts that the kernel of each router has a BGP route to each prefix of via, by the
// addresses of its members on the network alone. No other prefix that overlaps within may have
// a BGP route. It reads snapshot.Routers.
func Routes(within netip.Prefix, network string, via map[netip.Prefix][]string) framework.Condition {
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		want := map[netip.Prefix][]netip.Addr{}
		for prefix, members := range via {
			for _, member := range members {
				address, on := r.Topology.AddressOn(member, network)
				if !on {
					return false, "", fmt.Errorf("no member %q with a link to network %q in the lab", member, network)
				}
				for _, f := range r.Topology.Families() {
					want[f.Prefix(prefix)] = append(want[f.Prefix(prefix)], f.Addr(address))
				}
			}
		}
		for _, hops := range want {
			slices.SortFunc(hops, netip.Addr.Compare)
		}
		read := routersOf(r)
		var wrong framework.Mismatches
		for _, declared := range r.Topology.Routers {
			if !read[declared.Name].Routes.Read {
				return false, "", fmt.Errorf("the routes of %s were not read", declared.Name)
			}
			got := map[netip.Prefix][]netip.Addr{}
			for _, f := range r.Topology.Families() {
				maps.Copy(got, nextHops(read[declared.Name], f.Prefix(within)))
			}
			for _, prefix := range slices.SortedFunc(maps.Keys(want), netip.Prefix.Compare) {
				if !slices.Equal(got[prefix], want[prefix]) {
					wrong.Addf("%s sends %s to %v, not to %v", declared.Name, prefix, got[prefix], want[prefix])
				}
				delete(got, prefix)
			}
			for _, prefix := range slices.SortedFunc(maps.Keys(got), netip.Prefix.Compare) {
				wrong.Addf("%s has %s via %v", declared.Name, prefix, got[prefix])
			}
		}
		return wrong.Result()
	}
}

// Sessions asserts that each router has a BGP session, on this network, with the nodes in with, and
// with no other node of nodes. It reads snapshot.Routers.
func Sessions(network string, nodes, with []string) framework.Condition {
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		var wrong framework.Mismatches
		read := routersOf(r)
		for _, declared := range r.Topology.Routers {
			from := read[declared.Name]
			if !from.Neighbors.Read {
				return false, "", fmt.Errorf("the sessions of %s were not read", declared.Name)
			}
			for _, node := range nodes {
				address, on := r.Topology.AddressOn(node, network)
				if !on {
					return false, "", fmt.Errorf("no member %q with a link to network %q in the lab", node, network)
				}
				if _, up := from.Session(address); up != slices.Contains(with, node) {
					wrong.Addf("%s has a session with %s: %t", declared.Name, node, up)
				}
			}
		}
		return wrong.Result()
	}
}

func routersOf(r *framework.Run) map[string]snapshot.Router {
	read := map[string]snapshot.Router{}
	for _, router := range r.Snapshot().Routers {
		read[router.Name] = router
	}
	return read
}

// nextHops are the BGP routes of a router's kernel that overlap a range, by prefix.
func nextHops(from snapshot.Router, within netip.Prefix) map[netip.Prefix][]netip.Addr {
	hops := map[netip.Prefix][]netip.Addr{}
	for _, route := range from.Routes.Items {
		if route.Prefix.Overlaps(within) && route.Prefix.Bits() > 0 && route.Protocol == snapshot.RouteBGP {
			for _, hop := range route.NextHops {
				hops[route.Prefix] = append(hops[route.Prefix], hop.Address)
			}
		}
	}
	for prefix := range hops {
		slices.SortFunc(hops[prefix], netip.Addr.Compare)
	}
	return hops
}

// Hops asserts that the packets of each probe from a host cross n routers and nodes, and arrive
// with the address of the host's eth0. Otherwise they may have crossed the machine's bridge or NAT.
func Hops(from framework.Endpoint, n int) framework.Condition {
	const sentWith = 64 // TTL
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		host, declared := r.Topology.Member(from.Host)
		if !declared {
			return false, "", fmt.Errorf("no host %q in the lab", from.Host)
		}
		own := host.Links[0].Address
		var wrong framework.Mismatches
		probes := 0
		for _, t := range r.Timelines() {
			if t.Probe.From != from.Name {
				continue
			}
			probes++
			for _, ttl := range slices.Sorted(maps.Keys(t.RequestTTL)) {
				if int(ttl) != sentWith-n {
					wrong.Addf("%d packets of %s crossed %d hops, not %d", t.RequestTTL[ttl], t.Probe.Name, sentWith-int(ttl), n)
				}
			}
			for _, s := range t.Sources {
				if s.Address != own && s.Address != topology.IPv6.Addr(own) {
					wrong.Addf("packets of %s come from %s", t.Probe.Name, s.Address)
				}
			}
			if len(t.RequestTTL) == 0 || len(t.Sources) == 0 {
				wrong.Addf("no packet of %s has arrived", t.Probe.Name)
			}
		}
		if probes == 0 {
			wrong.Addf("no probe from %s runs", from.Name)
		}
		return wrong.Result()
	}
}

// Waiting asserts that so many Services of type LoadBalancer have no address. It reads snapshot.Services.
func Waiting(want int) framework.Condition {
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		count := len(each.Where(r.Snapshot().Services.Items, func(s snapshot.Service) bool {
			return s.Requests != "" && len(s.LoadBalancerIPs) == 0
		}))
		return count == want, fmt.Sprintf("%d wait, not %d", count, want), nil
	}
}

// AnsweredByOthers asserts that each probe has lost packets because another endpoint answered them.
func AnsweredByOthers(probes ...probe.Probe) framework.Condition {
	return func(_ context.Context, r *framework.Run) (bool, string, error) {
		var wrong framework.Mismatches
		for _, t := range r.Timelines() {
			if slices.Contains(probes, t.Probe) && t.Errors[wire.WrongServer] == 0 {
				wrong.Addf("no packet of %s was %s", t.Probe.Name, wire.WrongServer)
			}
		}
		return wrong.Result()
	}
}
