//go:build cilium_1_11_12

package main

import (
	"github.com/cilium/cilium/pkg/k8s/watchers"
	"github.com/cilium/cilium/pkg/nodediscovery"
)

// What later versions of 1.11 have otherwise; of those that are published, 1.11.16
// was looked at. They know the node's name without being told, and the updater of
// CiliumNodes asks for what it tells alone.
func startDiscovery(discovery *nodediscovery.NodeDiscovery) { discovery.StartDiscovery() }

func registerCiliumNodeUpdater(watcher *watchers.K8sWatcher, discovery *nodediscovery.NodeDiscovery) {
	watcher.NodeChain.Register(watchers.NewCiliumNodeUpdater(discovery))
}
