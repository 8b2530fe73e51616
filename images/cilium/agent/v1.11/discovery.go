//go:build !cilium_1_11_12

package main

import (
	"github.com/cilium/cilium/pkg/datapath"
	nodeTypes "github.com/cilium/cilium/pkg/node/types"
	"github.com/cilium/cilium/pkg/nodediscovery"
)

func startDiscovery(discovery *nodediscovery.NodeDiscovery) {
	discovery.StartDiscovery(nodeTypes.GetName())
}

// allocateNodeIDs does nothing: in these versions nodes have no numbers of their own.
func allocateNodeIDs(datapath.NodeHandler) {}
