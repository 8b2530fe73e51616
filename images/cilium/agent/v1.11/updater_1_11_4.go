//go:build cilium_1_11_4

package main

import (
	"github.com/cilium/cilium/pkg/k8s/watchers"
	"github.com/cilium/cilium/pkg/nodediscovery"
)

// registerCiliumNodeUpdater makes the vendor's updater of CiliumNodes a
// subscriber of Nodes. In 1.11.4, the first version that has one, it does not
// write to a key-value store.
func registerCiliumNodeUpdater(watcher *watchers.K8sWatcher, _ *nodediscovery.NodeDiscovery) {
	watcher.NodeChain.Register(watchers.NewCiliumNodeUpdater(watcher))
}
