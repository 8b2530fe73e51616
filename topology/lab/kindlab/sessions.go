package kindlab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/bgp"
)

// sessionsWithin bounds the wait for BGP sessions: a speaker dials within about ten
// seconds of its start or the loss of a session, and FRR's after two minutes if the other side has refused it.
const sessionsWithin = 150 * time.Second

// SessionsUp waits until each of the lab's routers has a BGP session with each of these nodes,
// established at since or later, and a route received over it. A session without a route may
// precede the speaker's announcements. A route without a session may be retained by graceful
// restart. The zero time accepts sessions of any age.
func (l *Lab) SessionsUp(ctx context.Context, nodes []string, since time.Time) error {
	return l.sessions(ctx, "the routes of ", nodes, "no session, or no route over it: ", func(there []bgp.Neighbor, address netip.Addr) bool {
		return bgp.Announces(there, address, since)
	})
}

// Connected is SessionsUp for speakers that may have no route to announce.
func (l *Lab) Connected(ctx context.Context, nodes []string, since time.Time) error {
	return l.sessions(ctx, "new sessions of ", nodes, "none with ", func(there []bgp.Neighbor, address netip.Addr) bool {
		return bgp.Came(there, address, since)
	})
}

// BFDUp waits until each of the lab's routers has a BFD session with each of these nodes.
func (l *Lab) BFDUp(ctx context.Context, nodes []string) error {
	return l.sessions(ctx, "BFD with ", nodes, "no session with ", func(there []bgp.Neighbor, address netip.Addr) bool {
		return slices.ContainsFunc(there, func(n bgp.Neighbor) bool { return n.Address == address && n.BFD == "up" })
	})
}

func (l *Lab) sessions(
	ctx context.Context, what string, nodes []string, lacking string, holds func(there []bgp.Neighbor, address netip.Addr) bool,
) error {
	return l.eachRouter(nodes, func(r *Router, neighbors []netip.Addr) error {
		return await.Until(ctx, what+strings.Join(nodes, ", ")+" on "+r.Name(), 100*time.Millisecond, sessionsWithin,
			func(ctx context.Context) (bool, string, error) {
				there, err := r.Neighbors(ctx)
				if err != nil {
					return false, "", err
				}
				var missing []string
				for i, node := range nodes {
					if !holds(there, neighbors[i]) {
						missing = append(missing, node)
					}
				}
				return len(missing) == 0, lacking + strings.Join(missing, ", "), nil
			})
	})
}

// Announced waits until each of the lab's routers has learned a route to an address from a node.
func (l *Lab) Announced(ctx context.Context, node string, address netip.Addr) error {
	return l.eachRouter([]string{node}, func(r *Router, neighbors []netip.Addr) error {
		return await.Until(ctx, fmt.Sprintf("%s to learn a route to %s from %s", r.Name(), address, node), 100*time.Millisecond, sessionsWithin,
			func(ctx context.Context) (bool, string, error) {
				paths, err := r.RIB(ctx)
				if err != nil {
					return false, "", err
				}
				var others []string
				for _, p := range paths {
					switch {
					case !p.Prefix.Contains(address) || p.Prefix.Bits() == 0:
					case isOneOf(neighbors, p.Neighbor):
						return true, "", nil
					default:
						others = append(others, p.Neighbor.String())
					}
				}
				return false, "neighbours that announce one: " + cmp.Or(strings.Join(others, ", "), "none"), nil
			})
	})
}

// Withdrawn waits until none of the lab's routers has a route from a node to an address alone,
// which a wider one may still include.
func (l *Lab) Withdrawn(ctx context.Context, node string, address netip.Addr) error {
	return l.eachRouter([]string{node}, func(r *Router, neighbors []netip.Addr) error {
		return await.Until(ctx, fmt.Sprintf("%s to lose the route to %s from %s", r.Name(), address, node), 100*time.Millisecond, sessionsWithin,
			func(ctx context.Context) (bool, string, error) {
				paths, err := r.RIB(ctx)
				has := slices.ContainsFunc(paths, func(p bgp.Path) bool {
					return p.Prefix == netip.PrefixFrom(address, address.BitLen()) && isOneOf(neighbors, p.Neighbor)
				})
				return err == nil && !has, "it has it", err
			})
	})
}

// SessionsDecided waits until each of the lab's routers has, for each of these
// nodes, either a BGP session or no route: none is retained by graceful restart.
// The caller sets the bound, because it depends on the speakers' restart time.
func (l *Lab) SessionsDecided(ctx context.Context, nodes []string, bound time.Duration) error {
	return l.eachRouter(nodes, func(r *Router, neighbors []netip.Addr) error {
		return await.Until(ctx, r.Name()+" to have a session with every node or none of its routes", 100*time.Millisecond, bound,
			func(ctx context.Context) (bool, string, error) {
				there, err := r.Neighbors(ctx)
				if err != nil {
					return false, "", err
				}
				paths, err := r.RIB(ctx)
				if err != nil {
					return false, "", err
				}
				var waiting []string
				for i, node := range nodes {
					if isKept(there, paths, neighbors[i]) {
						waiting = append(waiting, node)
					}
				}
				return len(waiting) == 0, "routes retained by graceful restart of " + strings.Join(waiting, ", "), nil
			})
	})
}

// isKept reports whether a router has paths from a neighbour without a session.
func isKept(neighbors []bgp.Neighbor, paths []bgp.Path, address netip.Addr) bool {
	has := slices.ContainsFunc(paths, func(p bgp.Path) bool { return p.Neighbor == address })
	return has && !bgp.Established(neighbors, address)
}

// ClearSessions makes each of the lab's routers close its sessions with these nodes
// and drop their routes, including retained ones. A running speaker dials again.
func (l *Lab) ClearSessions(ctx context.Context, nodes []string) error {
	return l.eachRouter(nodes, func(r *Router, neighbors []netip.Addr) error {
		var err error
		for _, address := range neighbors {
			err = errors.Join(err, r.Clear(ctx, address))
		}
		return err
	})
}

// eachRouter calls do for each of the lab's routers in turn, with the nodes'
// addresses on the network that they share with it.
func (l *Lab) eachRouter(nodes []string, do func(r *Router, neighbors []netip.Addr) error) error {
	for _, declared := range l.Topology.Routers {
		neighbors, err := l.neighborsOf(declared.Name, nodes)
		if err != nil {
			return err
		}
		r, err := l.Router(declared.Name)
		if err != nil {
			return err
		}
		if err := errors.Join(do(r, neighbors), r.Close()); err != nil {
			return err
		}
	}
	return nil
}

// isOneOf reports whether an address is one of these IPv4 addresses, or belongs to one.
func isOneOf(neighbors []netip.Addr, address netip.Addr) bool {
	return slices.ContainsFunc(neighbors, func(n netip.Addr) bool { return n == address || topology.IPv6.Addr(n) == address })
}

func (l *Lab) neighborsOf(name string, nodes []string) ([]netip.Addr, error) {
	member, _ := l.Topology.Member(name)
	var neighbors []netip.Addr
	for _, node := range nodes {
		i := len(neighbors)
		for _, link := range member.Links {
			if address, there := l.Topology.AddressOn(node, link.Network); there {
				neighbors = append(neighbors, address)
				break
			}
		}
		if len(neighbors) == i {
			return nil, fmt.Errorf("node %q and router %q have no network in common", node, name)
		}
	}
	return neighbors, nil
}

// AddStatic gives every router a static route to a prefix, in place of an earlier one.
func (l *Lab) AddStatic(ctx context.Context, prefix netip.Prefix, nextHop netip.Addr) error {
	return l.eachRouter(nil, func(r *Router, _ []netip.Addr) error { return r.AddStatic(ctx, prefix, nextHop) })
}

// RouteOver gives every router a static route to a prefix over a node, by an address of the prefix's family.
func (l *Lab) RouteOver(ctx context.Context, node string, prefix netip.Prefix) error {
	return l.eachRouter([]string{node}, func(r *Router, at []netip.Addr) error {
		if prefix.Addr().Is6() {
			at[0] = topology.IPv6.Addr(at[0])
		}
		return r.AddStatic(ctx, prefix, at[0])
	})
}

// RemoveStatic removes the static route to a prefix from every router that has one.
func (l *Lab) RemoveStatic(ctx context.Context, prefix netip.Prefix) error {
	return l.eachRouter(nil, func(r *Router, _ []netip.Addr) error { return r.RemoveStatic(ctx, prefix) })
}

// Links implements snapshot.LinkReader: nothing where the router's program does not tell.
func (r *Router) Links(ctx context.Context) ([]bgp.LinkNeighbor, error) {
	reader, reads := r.RouterControl.(interface {
		Links(context.Context) ([]bgp.LinkNeighbor, error)
	})
	if !reads {
		return nil, nil
	}
	return reader.Links(ctx)
}

// WatchLink makes each router on a network ask there who answers for an address. A router without a route to
// the address there gets one.
func (l *Lab) WatchLink(ctx context.Context, network string, address netip.Addr) error {
	return l.eachRouter(nil, func(r *Router, _ []netip.Addr) error {
		own, there := l.Topology.AddressOn(r.Name(), network)
		if !there {
			return nil
		}
		watcher, watches := r.RouterControl.(interface {
			WatchLink(ctx context.Context, address, own netip.Addr) error
		})
		if !watches {
			return fmt.Errorf("router %s is not relapse's own, and does not tell who answers for %s", r.Name(), address)
		}
		return watcher.WatchLink(ctx, address, own)
	})
}
