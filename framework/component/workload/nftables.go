package workload

import (
	"context"
	"fmt"

	"github.com/google/nftables"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

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
