//go:build cilium_1_11_12

package main

import (
	"github.com/cilium/cilium/pkg/datapath"
	"github.com/cilium/cilium/pkg/ipcache"
	"github.com/cilium/cilium/pkg/k8s/watchers"
	"github.com/cilium/cilium/pkg/nodediscovery"
)

// registerCiliumNodeUpdater makes the vendor's updater of CiliumNodes a
// subscriber of Nodes. In these versions it goes through the node discovery alone.
func registerCiliumNodeUpdater(watcher *watchers.K8sWatcher, discovery *nodediscovery.NodeDiscovery) {
	watcher.NodeChain.Register(watchers.NewCiliumNodeUpdater(discovery))
}

func startDiscovery(discovery *nodediscovery.NodeDiscovery) { discovery.StartDiscovery() }

// allocateNodeIDs has the node handler number the nodes that the IP cache hears of.
func allocateNodeIDs(handler datapath.NodeHandler) { ipcache.NodeHandler = handler }
