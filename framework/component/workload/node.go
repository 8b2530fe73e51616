package workload

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// conflist is a node's CNI configuration: the pods' ranges are Node.spec's.
const conflist = `{"cniVersion": "1.0.0", "name": "relapse", "plugins": [{"type": "ptp", "mtu": 1500, "ipMasq": false,
 "ipam": {"type": "host-local", "ranges": [%s], "routes": [%s]}}]}
`

// writeConflist leaves no moment with half a file: pods may start meanwhile. Several variants may do so at once.
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

// Route gives every router of the lab static routes to the pods of a node, by Node.spec, and returns their ranges.
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

// Forget makes a node's kernel forget the connections that these arguments of conntrack(8)
// choose, if there are any: their next packet is the first one of a new connection. conntrack ends at a
// connection that has expired since it was listed, and is called again then.
func Forget(ctx context.Context, n *kindlab.Node, choose ...string) error {
	what := fmt.Sprintf("connection tracking on %s to forget %s", n.Name(), strings.Join(choose, " "))
	return await.Until(ctx, what, 50*time.Millisecond, 20*time.Second, func(ctx context.Context) (bool, string, error) {
		_, err := n.Exec(ctx, slices.Concat([]string{"conntrack", "-D"}, choose)...)
		none := err != nil && strings.Contains(err.Error(), ": 0 flow entries have been deleted")
		return err == nil || none, "", err
	})
}

// TablesRemoved removes nftables' tables of a name, of all families, from nodes, whose nft may be too old for them.
func TablesRemoved(name string, nodes ...string) framework.Action {
	return labaccess.OnNodes(nodes, func(ctx context.Context, n *kindlab.Node) error {
		err := n.InNetns(ctx, func() error {
			conn := &nftables.Conn{}
			tables, err := conn.ListTables()
			for _, t := range tables {
				if t.Name == name {
					conn.DelTable(t)
				}
			}
			if err != nil {
				return err
			}
			return conn.Flush()
		})
		if err != nil {
			return fmt.Errorf("removing tables %s of nftables from %s: %w", name, n.Name(), err)
		}
		return nil
	})
}
