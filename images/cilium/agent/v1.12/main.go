// Command cilium-agent is a slice of Cilium's agent at versions 1.12: the
// BGP speaker, the node's pod CIDR, its CiliumNode and the routes to the other
// nodes, all by the vendor's packages. Package agent says which decisions are
// the vendor's and which are the slice's. This file connects the vendor's
// objects as NewDaemon in these versions' daemon/cmd/daemon.go does.
//
// In these versions the speaker follows CiliumNodes with ipam=cluster-pool
// (pkg/bgp/speaker/speaker.go, OnAddCiliumNode and its like): it announces
// CiliumNode.spec.ipam.podCIDRs, and when the node's own CiliumNode is deleted
// it withdraws everything and stops. With ipam=kubernetes it follows Nodes as
// before.
package main

import (
	"context"
	"fmt"
	_ "unsafe" // go:linkname

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
	nodes, err := nodemanager.NewManager("all", dp.Node(), option.Config, nil, nil)
	if err != nil {
		return agent.Parts{}, fmt.Errorf("creating the node manager: %w", err)
	}
	discovery := nodediscovery.NewNodeDiscovery(nodes, mtuConfig, nil)
	identities := ipcache.NewIPCache(&ipcache.Configuration{})
	nodes.WithIPCache(identities)

	var bgp *speaker.MetalLBSpeaker
	if option.Config.BGPAnnouncePodCIDR {
		if bgp, err = speaker.New(ctx, speaker.Opts{PodCIDR: true}); err != nil {
			return agent.Parts{}, fmt.Errorf("creating the BGP speaker: %w", err)
		}
	}
	watcher := watchers.NewK8sWatcher(nil, discovery, nil, nil, nil, dp, nil, bgp, nil, nil, option.Config, identities)
	if option.Config.BGPAnnouncePodCIDR {
		switch option.Config.IPAMMode() {
		case ipamOption.IPAMKubernetes:
			watcher.RegisterNodeSubscriber(bgp)
		case ipamOption.IPAMClusterPool:
			watcher.RegisterCiliumNodeSubscriber(bgp)
		}
	}
	registerCiliumNodeUpdater(watcher, discovery)

	return agent.Parts{
		Watcher:   watcher,
		Discovery: discovery,
		EnableWatchers: func(ctx context.Context, groups []string) error {
			return enableK8sWatchers(watcher, ctx, groups)
		},
		StartDiscovery: discovery.StartDiscovery,
	}, nil
}

// enableK8sWatchers is the vendor's method behind InitK8sSubsystem, exported
// as EnableK8sWatcher until 1.11. InitK8sSubsystem itself would watch services,
// pods and policies too, for managers that the slice has not got.
//
//go:linkname enableK8sWatchers github.com/cilium/cilium/pkg/k8s/watchers.(*K8sWatcher).enableK8sWatchers
func enableK8sWatchers(k *watchers.K8sWatcher, ctx context.Context, resourceNames []string) error
