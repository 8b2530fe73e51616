package fault

import (
	"context"
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
)

// NFTImage has the nft 1.1.3 of Debian 13.
const NFTImage = "relapse.dev/nft:trixie"

// ForeignTable is the table of nftables that ForeignSet makes.
const ForeignTable = "guard"

const foreignSet = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ` + ForeignTable + `, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: ` + ForeignTable + `}}
  template:
    metadata: {labels: {k8s-app: ` + ForeignTable + `}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 0
      tolerations: [{operator: Exists}]
      initContainers:
      - name: nft
        image: ` + NFTImage + `
        securityContext: {privileged: true}
        command: [nft, "add table inet ` + ForeignTable + `; add set inet ` + ForeignTable + ` interfaces { type ifname; }"]
      containers:
      - {name: firewall, image: "` + NFTImage + `", command: [sleep, infinity]}
`

// ForeignSet makes a set of interfaces with nft 1.1.3 in the nodes' network namespaces, as a firewall of Debian 13
// does. An nft older than 1.1.2 crashes when it reads the data that nft 1.1.3 stores with the set.
func ForeignSet(nodes ...string) framework.Fault {
	guard := workload.SystemDaemonSet(ForeignTable)
	runs := func(ctx context.Context, r *framework.Run, bound time.Duration) error {
		return guard.Ready(ctx, labaccess.Cluster(r), nodes, bound)
	}
	return framework.Fault{
		Name: "a firewall of Debian 13",
		Inject: framework.InOrder(workload.Applied(foreignSet), func(ctx context.Context, r *framework.Run) error {
			return runs(ctx, r, time.Minute)
		}),
		TookEffect: func(ctx context.Context, r *framework.Run) (bool, string, error) {
			err := runs(ctx, r, time.Second)
			return err == nil, fmt.Sprint(err), nil
		},
		Undo: framework.InOrder(labaccess.OnCluster(guard.Delete), workload.TablesRemoved(ForeignTable, nodes...)),
	}
}
