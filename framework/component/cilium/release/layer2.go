package release

import (
	"context"
	"strings"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// Answered is the label of Services for whose addresses agents answer by ARP, as "key: value".
const Answered = "answered-by: lab"

// AnsweredLabels are [Answered].
func AnsweredLabels() map[string]string {
	key, value, _ := strings.Cut(Answered, ": ")
	return map[string]string{key: value}
}

// Layer2 says which nodes' agents answer by ARP, and for which addresses of Services.
type Layer2 struct {
	Addresses snapshot.AddressRange
	Nodes     []string
}

// Apply declares it in the newest types of a version. It waits until the operator has registered them.
func (l Layer2) Apply(ctx context.Context, c *kindlab.Cluster, types Types) error {
	if types == Policy {
		types = Alpha
	}
	all, err := workload.Objects(strings.NewReplacer(
		"${version}", string(types), "${first}", l.Addresses.First.String(), "${last}", l.Addresses.Last.String(), "${nodes}", strings.Join(l.Nodes, ", "),
	).Replace(layer2))
	if err != nil {
		return err
	}
	return apply(ctx, c, all)
}

const layer2 = `apiVersion: ${version}
kind: CiliumLoadBalancerIPPool
metadata: {name: arp}
spec:
  blocks: [{start: ${first}, stop: ${last}}]
  serviceSelector: {matchLabels: {` + Answered + `}}
---
apiVersion: cilium.io/v2alpha1
kind: CiliumL2AnnouncementPolicy
metadata: {name: arp}
spec:
  loadBalancerIPs: true
  serviceSelector: {matchLabels: {` + Answered + `}}
  nodeSelector: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [${nodes}]}]}
`
