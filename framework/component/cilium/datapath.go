package cilium

import (
	"net/netip"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Masquerade finds, among a node's NAT rules, the one of Cilium's that hides the node's pods from
// all but the native CIDR (pkg/datapath/iptables/iptables.go, installMasqueradeRules).
func Masquerade(rules []snapshot.Rule, pods, native netip.Prefix) (rule snapshot.Rule, there bool) {
	return each.First(rules, func(r snapshot.Rule) bool {
		return r.Chain == "CILIUM_POST_nat" && r.Comment == "cilium masquerade non-cluster" && r.Target == "MASQUERADE" &&
			r.Source == (snapshot.Match{Range: pods}) && r.Destination == (snapshot.Match{Range: native, Not: true})
	})
}

// NodeHeader is the path on a node of what the agent configures the BPF programs that it compiles.
const NodeHeader = "/var/run/cilium/state/globals/node_config.h"
