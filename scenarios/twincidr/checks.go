package twincidr

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/check"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/labaccess"
)

// oneOrigin asserts that the routers send each node its own range, and twoOrigins that they
// share the lowest out between its owner and the newcomer.
var (
	oneOrigin  = sends(map[netip.Prefix][]string{lowest: {owner}, second: {master}, third: {newcomer}})
	twoOrigins = sends(map[netip.Prefix][]string{lowest: {owner, newcomer}, second: {master}})
)

func sends(via map[netip.Prefix][]string) framework.Condition {
	return check.Routes(podCIDR, nodeNet.Name, via)
}

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
