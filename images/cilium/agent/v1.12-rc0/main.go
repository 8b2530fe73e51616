// Command cilium-agent is a slice of Cilium's agent at 1.12.0-rc0, whose speaker
// follows CiliumNodes as that of 1.12 does (see agent/v1.12). The rest is connected
// as in 1.11: there is one cache of identities for all, and nobody updates a
// CiliumNode when its Node changes.
package main

import (
	"context"
	"fmt"

	"github.com/cilium/cilium/pkg/bgp/speaker"
	"github.com/cilium/cilium/pkg/datapath"
	ipamOption "github.com/cilium/cilium/pkg/ipam/option"
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
		switch option.Config.IPAMMode() {
		case ipamOption.IPAMKubernetes:
			watcher.RegisterNodeSubscriber(bgp)
		case ipamOption.IPAMClusterPool:
			watcher.RegisterCiliumNodeSubscriber(bgp)
		}
	}
	return agent.Parts{
		Watcher:        watcher,
		Discovery:      discovery,
		EnableWatchers: watcher.EnableK8sWatcher,
		StartDiscovery: discovery.StartDiscovery,
	}, nil
}
