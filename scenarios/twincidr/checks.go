package twincidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// oneOrigin asserts that the routers send each node its own range.
var oneOrigin = check.Routes(podCIDR, nodeNet.Name, map[netip.Prefix]string{lowest: owner, second: master, third: newcomer})

// twoOrigins asserts that the kernel of each router has the lowest range by its owner and by
// the newcomer.
func twoOrigins(_ context.Context, r *framework.Run) (bool, string, error) {
	var want []netip.Addr
	for _, name := range []string{owner, newcomer} {
		address, _ := r.Topology.AddressOn(name, nodeNet.Name)
		want = append(want, address)
	}
	var wrong framework.Mismatches
	routers := r.Snapshot().Routers
	if len(routers) != len(tors) {
		return false, "", fmt.Errorf("%d of %d routers were read", len(routers), len(tors))
	}
	for _, from := range routers {
		if !from.Routes.Read {
			return false, "", fmt.Errorf("the routes of %s were not read", from.Name)
		}
		var got []netip.Addr
		for _, route := range from.Routes.Items {
			if route.Prefix == lowest && route.Protocol == snapshot.RouteBGP {
				for _, hop := range route.NextHops {
					got = append(got, hop.Address)
				}
			}
		}
		if slices.SortFunc(got, netip.Addr.Compare); !slices.Equal(got, want) {
			wrong.Addf("%s sends %s to %v, not to %v", from.Name, lowest, got, want)
		}
	}
	return wrong.Result()
}

// operatorKnows asserts that the operator has refused the owner its range, and has told
// nobody but its CiliumNode.
func operatorKnows(ctx context.Context, r *framework.Run) (bool, string, error) {
	says, err := cilium.OperatorError(ctx, labaccess.Cluster(r), owner)
	return refused(says), fmt.Sprintf("it says %q", says), err
}

// refused reports whether the operator says that the lowest range is taken: "requested CIDR
// (10.69.128.0/27) is already allocated" (ErrCIDRAllocated, pkg/ipam/allocator/podcidr of 1.12.0
// and 1.12.3).
func refused(says string) bool {
	return strings.Contains(says, "requested CIDR ("+lowest.String()+") is already allocated")
}
