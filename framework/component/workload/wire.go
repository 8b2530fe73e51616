package workload

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// conflist is a node's CNI configuration: the pods' ranges are Node.spec's.
const conflist = `{"cniVersion": "1.0.0", "name": "relapse", "plugins": [{"type": "ptp", "mtu": 1500, "ipMasq": false,
 "ipam": {"type": "host-local", "ranges": [%s], "routes": [%s]}}]}
`

// writeConflist leaves no moment with half a file: pods may start meanwhile. Several may run at
// once, where variants do.
const writeConflist = `cd /etc/cni/net.d && cat >relapse.$$ && mv relapse.$$ 10-relapse.conflist`

// Wire gives the pods of a node a network if no component under test does: the CNI plugin
// ptp over the range of Node.spec, with a static route on every router of the lab.
func Wire(ctx context.Context, lab *kindlab.Lab, node string) error {
	pods, err := Route(ctx, lab, node)
	if err != nil {
		return err
	}
	ranges := each.Joined(pods, ", ", func(p netip.Prefix) string { return fmt.Sprintf(`[{"subnet": %q}]`, p) })
	routes := each.Joined(pods, ", ", func(p netip.Prefix) string {
		return fmt.Sprintf(`{"dst": %q}`, netip.PrefixFrom(p.Addr(), 0).Masked())
	})
	text := strings.NewReader(fmt.Sprintf(conflist, ranges, routes))
	if _, err := lab.Node(node).ExecInput(ctx, text, "sh", "-c", writeConflist); err != nil {
		return fmt.Errorf("writing the CNI configuration of %s: %w", node, err)
	}
	return nil
}

// Route gives every router of the lab static routes to the pods of a node, by
// Node.spec, and returns their ranges.
func Route(ctx context.Context, lab *kindlab.Lab, node string) ([]netip.Prefix, error) {
	pods, err := lab.Clusters[0].PodRanges(ctx, node)
	for _, p := range pods {
		err = errors.Join(err, lab.RouteOver(ctx, node, p))
	}
	return pods, err
}

// Routed is the action that routes to the pods of these nodes (Route).
func Routed(nodes ...string) framework.Action {
	return labaccess.OnLab(func(ctx context.Context, l *kindlab.Lab) error {
		return l.EachNode(ctx, nodes, func(ctx context.Context, n *kindlab.Node) error {
			_, err := Route(ctx, l, n.Name())
			return err
		})
	})
}

// WireNodes is the action that wires the pods of every node of the cluster (Wire).
func WireNodes(ctx context.Context, r *framework.Run) error {
	return Wired(labaccess.Cluster(r).Nodes()...)(ctx, r)
}

// Wired is the action that wires the pods of these nodes (Wire).
func Wired(nodes ...string) framework.Action {
	return labaccess.OnLab(func(ctx context.Context, l *kindlab.Lab) error {
		return l.EachNode(ctx, nodes, func(ctx context.Context, n *kindlab.Node) error { return Wire(ctx, l, n.Name()) })
	})
}
