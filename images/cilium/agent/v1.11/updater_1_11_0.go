//go:build cilium_1_11_0

package main

import (
	"github.com/cilium/cilium/pkg/k8s/watchers"
	"github.com/cilium/cilium/pkg/nodediscovery"
)

// registerCiliumNodeUpdater does nothing: these versions write their CiliumNode when
// node discovery starts, and follow no change of their Node.
func registerCiliumNodeUpdater(*watchers.K8sWatcher, *nodediscovery.NodeDiscovery) {}
