//go:build !cilium_1_11_12

package main

import (
	nodeTypes "github.com/cilium/cilium/pkg/node/types"
	"github.com/cilium/cilium/pkg/nodediscovery"
)

func startDiscovery(discovery *nodediscovery.NodeDiscovery) {
	discovery.StartDiscovery(nodeTypes.GetName())
}
