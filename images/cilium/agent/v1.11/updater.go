//go:build !cilium_1_11_0 && !cilium_1_11_4 && !cilium_1_11_12

package main

import (
	"github.com/cilium/cilium/pkg/k8s/watchers"
	"github.com/cilium/cilium/pkg/nodediscovery"
)

// registerCiliumNodeUpdater makes the vendor's updater of CiliumNodes a
// subscriber of Nodes.
func registerCiliumNodeUpdater(watcher *watchers.K8sWatcher, discovery *nodediscovery.NodeDiscovery) {
	watcher.NodeChain.Register(watchers.NewCiliumNodeUpdater(watcher, discovery))
}
