package cordonwithdraws

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

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
