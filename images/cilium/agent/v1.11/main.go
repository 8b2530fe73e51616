// Command cilium-agent is a slice of Cilium's agent at versions 1.11: the
// BGP speaker, the node's pod CIDR, its CiliumNode and the routes to the other
// nodes, all by the vendor's packages. Package agent says which decisions are
// the vendor's and which are the slice's. This file connects the vendor's
// objects as NewDaemon in these versions' daemon/cmd/daemon.go does.
//
// In these versions the speaker follows Nodes (pkg/bgp/speaker/speaker.go,
// OnAddNode and OnUpdateNode): it announces Node.spec.podCIDRs whatever the
// IPAM mode is. The watcher calls it when labels of the Node have changed and
// never when a Node is deleted (pkg/k8s/watchers/node.go: nodeEventsAreEqual,
// and DeleteFunc, which is empty).
package main

import (
	"context"
	"fmt"

	"github.com/cilium/cilium/pkg/bgp/speaker"
	"github.com/cilium/cilium/pkg/datapath"
	"github.com/cilium/cilium/pkg/ipcache"
	"github.com/cilium/cilium/pkg/k8s/watchers"
	"github.com/cilium/cilium/pkg/mtu"
	nodemanager "github.com/cilium/cilium/pkg/node/manager"
	"github.com/cilium/cilium/pkg/nodediscovery"
	"github.com/cilium/cilium/pkg/option"

	"github.com/relapse-dev/relapse/images/cilium/agent"
)

func main() { agent.Main(wire) }

func wire(ctx context.Context, dp datapath.Datapath, mtuConfig mtu.Configuration) (agent.Parts, error) {
	nodes, err := nodemanager.NewManager("all", dp.Node(), ipcache.IPIdentityCache, option.Config, nil, nil)
	if err != nil {
		return agent.Parts{}, fmt.Errorf("creating the node manager: %w", err)
	}
	discovery := nodediscovery.NewNodeDiscovery(nodes, mtuConfig, nil)

	var bgp *speaker.MetalLBSpeaker
	if option.Config.BGPAnnouncePodCIDR {
		if bgp, err = speaker.New(ctx, speaker.Opts{PodCIDR: true}); err != nil {
			return agent.Parts{}, fmt.Errorf("creating the BGP speaker: %w", err)
		}
	}
	watcher := watchers.NewK8sWatcher(nil, discovery.Manager, nil, nil, nil, dp, nil, bgp, nil, option.Config)
	discovery.RegisterK8sNodeGetter(watcher)
	if option.Config.BGPAnnouncePodCIDR {
		watcher.NodeChain.Register(bgp)
	}
	registerCiliumNodeUpdater(watcher, discovery)

	return agent.Parts{
		Watcher:        watcher,
		Discovery:      discovery,
		EnableWatchers: watcher.EnableK8sWatcher,
		StartDiscovery: func() { startDiscovery(discovery) },
	}, nil
}
