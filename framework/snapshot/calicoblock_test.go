package snapshot

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/topology/must"
)

const (
	blockPath = "/apis/crd.projectcalico.org/v1/ipamblocks"
	blockList = `{"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlockList","metadata":{},"items":[
 {"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock","metadata":{"name":"10-1-0-64-26","creationTimestamp":"2026-01-02T03:04:05Z"},
  "spec":{"cidr":"10.1.0.64/26","affinity":"host:worker","allocations":[0,null,1,2,3,9],"unallocated":[1],"attributes":[
   {"handle_id":"k8s-pod-network.1","secondary":{"namespace":"shop","node":"worker","pod":"cart-0"}},
   {"handle_id":"ipip-tunnel-addr-other","secondary":{"node":"other","type":"ipipTunnelAddress"}},
   {"handle_id":"k8s-pod-network.2","secondary":{"namespace":"shop","node":"third","pod":"cart-1"}},
   {"handle_id":"windows-reserved-ipam-handle"}]}},
 {"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock","metadata":{"name":"10-1-0-0-26"},"spec":{"cidr":"10.1.0.0/26","affinity":"virtual:load-balancer"}},
 {"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock","metadata":{"name":"10-1-0-128-26"},"spec":{"cidr":"10.1.0.128/26"}},
 {"apiVersion":"crd.projectcalico.org/v1","kind":"IPAMBlock","metadata":{"name":"10-1-0-192-26"},"spec":{"cidr":"10.1.0.192/26","affinity":"host:worker","deleted":true}}]}`
)

func TestCalicoBlocks(t *testing.T) {
	prefix := netip.MustParsePrefix
	for _, test := range []struct {
		name   string
		answer http.HandlerFunc
		want   []CalicoBlock
		err    string // what the error contains
	}{
		{"blocks", answer(http.StatusOK, blockList), []CalicoBlock{
			{CIDR: prefix("10.1.0.0/26")},
			{CIDR: prefix("10.1.0.64/26"), Node: "worker", Lent: []LentAddress{{netip.MustParseAddr("10.1.0.66"), "other"}, {netip.MustParseAddr("10.1.0.67"), "third"}}, Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
			{CIDR: prefix("10.1.0.128/26")},
		}, ""},
		{"a cluster without Calico", answer(http.StatusNotFound, "404 page not found\n"), nil, ""},
		{"a range that is none", answer(http.StatusOK, strings.Replace(blockList, "10.1.0.64/26", "10.1.0.64", 1)), nil,
			`IPAMBlock "10-1-0-64-26": spec.cidr: netip.ParsePrefix("10.1.0.64"): no '/'`},
		{"forbidden", answer(http.StatusForbidden, forbidden), nil,
			"listing IPAMBlocks: list on ipamblocks in crd.projectcalico.org is not permitted: not allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clusterOf(t, map[string]http.HandlerFunc{blockPath: test.answer})
			got, err := listedBlocks.items(t.Context(), c)
			must.Equal(t, "", test.want, got, byValue)
			fails(t, err, test.err)
		})
	}
}
