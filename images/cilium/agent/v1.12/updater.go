//go:build !cilium_1_12_2 && !cilium_1_12_4

package main

import (
	"github.com/cilium/cilium/pkg/k8s/watchers"
	"github.com/cilium/cilium/pkg/nodediscovery"
)

// registerCiliumNodeUpdater makes the vendor's updater of CiliumNodes a
// subscriber of Nodes.
func registerCiliumNodeUpdater(watcher *watchers.K8sWatcher, discovery *nodediscovery.NodeDiscovery) {
	discovery.RegisterK8sNodeGetter(watcher)
	watcher.NodeChain.Register(watchers.NewCiliumNodeUpdater(watcher, discovery))
}
