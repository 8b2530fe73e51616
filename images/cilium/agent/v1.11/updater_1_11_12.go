//go:build cilium_1_11_12

package main

import (
	"github.com/cilium/cilium/pkg/datapath/fake"
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

// The IP cache asks for a number of each node that it hears of. Numbers are the BPF
// programs': the vendor's handler writes them into one of their maps, and the slice has
// none. So none are given.
func init() { ipcache.SetNodeHandler(fake.NewNodeHandler()) }
