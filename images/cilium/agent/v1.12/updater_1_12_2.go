//go:build cilium_1_12_2

package main

import (
	"github.com/cilium/cilium/pkg/k8s/watchers"
	"github.com/cilium/cilium/pkg/nodediscovery"
)

// registerCiliumNodeUpdater makes the vendor's updater of CiliumNodes a
// subscriber of Nodes. In these versions it is given the node discovery alone.
func registerCiliumNodeUpdater(watcher *watchers.K8sWatcher, discovery *nodediscovery.NodeDiscovery) {
	discovery.RegisterK8sNodeGetter(watcher)
	watcher.NodeChain.Register(watchers.NewCiliumNodeUpdater(discovery))
}
