package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

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

// TablesRemoved is the action that removes the tables of nftables of a name, of all families, from nodes. A node's own nft
// may be too old for the sets that others have.
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
