package cordonwithdraws

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

// connected waits until every router has a session with each announcing node that came up
// since a moment. A session does not need a route: the speaker may have none to announce.
func connected(ctx context.Context, r *framework.Run, since time.Time) error {
	since = since.Add(-time.Second) // the resolution of Established
	for _, name := range tors {
		tor, err := labaccess.Lab(r).Router(name)
		if err != nil {
			return err
		}
		err = await.Until(ctx, "new sessions of "+name, 100*time.Millisecond, within, func(ctx context.Context) (bool, string, error) {
			there, err := tor.Neighbors(ctx)
			var missing []string
			for _, node := range announce {
				address, _ := r.Topology.AddressOn(node, nodeNet.Name)
				if !slices.ContainsFunc(there, func(n router.Neighbor) bool {
					return n.Address == address && n.State == router.StateEstablished && n.Established.After(since)
				}) {
					missing = append(missing, node)
				}
			}
			return len(missing) == 0, "none with " + strings.Join(missing, ", "), err
		})
		if err := errors.Join(err, tor.Close()); err != nil {
			return err
		}
	}
	return nil
}

// announcesMore asserts that cordoned nodes announce a Service that is created now, of which
// no router has a path: what the routers have is not merely left from before.
func announcesMore(ctx context.Context, r *framework.Run) (holds bool, saw string, err error) {
	var left framework.Mismatches
	for _, from := range r.Snapshot().Routers {
		if !from.Paths.Read {
			return false, "", fmt.Errorf("the paths of %s were not read", from.Name)
		}
		if slices.ContainsFunc(from.Paths.Items, func(p snapshot.Path) bool { return p.Prefix.Addr() == later.address }) {
			left.Addf("%s has %s before Service %s is created", from.Name, later.address, later.name)
		}
	}
	if none, saw, _ := left.Result(); !none {
		return false, saw, nil
	}
	c := labaccess.Cluster(r)
	defer func() {
		err = errors.Join(err, workload.RemoveService(context.WithoutCancel(ctx), c, later.name))
	}()
	if err := workload.Apply(ctx, c, later.manifest()); err != nil {
		return false, "", err
	}
	for _, node := range later.via {
		if err := labaccess.Lab(r).Announced(ctx, node, later.address); err != nil {
			return false, err.Error(), nil
		}
	}
	return true, "", nil
}

// announced asserts that the kernel of each router has both addresses by the nodes that are to
// announce them, and by no other.
var announced = check.Routes(addresses, nodeNet.Name, map[netip.Prefix][]string{
	netip.PrefixFrom(cluster.address, 32): cluster.via, netip.PrefixFrom(local.address, 32): local.via,
})

// sessionsUp asserts that each router has its sessions with the cordoned nodes.
func sessionsUp(_ context.Context, r *framework.Run) (bool, string, error) {
	var wrong framework.Mismatches
	for _, from := range r.Snapshot().Routers {
		if !from.Neighbors.Read {
			return false, "", fmt.Errorf("the sessions of %s were not read", from.Name)
		}
		for _, node := range announce {
			address, _ := r.Topology.AddressOn(node, nodeNet.Name)
			if _, up := from.Session(address); !up {
				wrong.Addf("%s has no session with %s", from.Name, node)
			}
		}
	}
	return wrong.Result()
}
