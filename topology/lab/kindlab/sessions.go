package kindlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

// sessionsWithin bounds the wait for BGP sessions: a speaker that has just
// started, or has lost a session, dials within some ten seconds.
const sessionsWithin = time.Minute

// SessionsUp waits until each of the lab's routers has a BGP session with each
// of these nodes that came up after a moment, and has a route over it. A
// session alone may be older than what the speaker has to say, and a route
// alone may be one that is kept while its speaker restarts. The zero moment
// takes sessions of any age.
func (l *Lab) SessionsUp(ctx context.Context, nodes []string, since time.Time) error {
	for _, declared := range l.Topology.Routers {
		neighbors, err := l.neighborsOf(declared.Name, nodes)
		if err != nil {
			return err
		}
		handle, err := l.Router(declared.Name)
		if err != nil {
			return err
		}
		err = await.Until(ctx, "the routes of "+strings.Join(nodes, ", ")+" on "+declared.Name, 100*time.Millisecond, sessionsWithin,
			func(ctx context.Context) (bool, string, error) {
				there, err := handle.Neighbors(ctx)
				if err != nil {
					return false, "", err
				}
				var missing []string
				for i, node := range nodes {
					if !router.Announces(there, neighbors[i], since) {
						missing = append(missing, node)
					}
				}
				return len(missing) == 0, "no session, or no route over it: " + strings.Join(missing, ", "), nil
			})
		if err = errors.Join(err, handle.Close()); err != nil {
			return err
		}
	}
	return nil
}

// neighborsOf are the addresses that nodes have on the network that they share
// with a router: the router knows them by these.
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
