package upgrade

import (
	"context"
	"errors"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
)

// firstSpeaker is the first version of which there is a slice with the BGP speaker.
const firstSpeaker = "1.11.4"

// ciliumUpgrade upgrades the agent's slice, and cilium-operator, which is whole. If both
// versions have a slice with the BGP speaker, that slice runs. Otherwise the slice runs
// that writes the vendor's iptables rules, and the ToR has static routes.
func ciliumUpgrade() Upgrade {
	u := ciliumSlice(true)
	u.Between = func(from, to string, _ map[string]any) Upgrade {
		return ciliumSlice(atLeast(from, firstSpeaker) && atLeast(to, firstSpeaker))
	}
	return u
}

func ciliumSlice(speaker bool) Upgrade {
	s := small{component: "cilium", number: 62}
	nodes := []string{master, worker1, worker2}
	at := func(version string) cilium.Cilium {
		if !speaker {
			return cilium.Cilium{Agent: cilium.Rules(version), Config: rulesConfig(s, version), OnDelete: true}
		}
		return cilium.Cilium{
			Agent: cilium.Agent(version), Operator: cilium.Operator(version), OnDelete: true,
			Config: cilium.Native.With(cilium.Config{
				"cluster-pool-ipv4-cidr":      s.podCIDR().String(),
				"cluster-pool-ipv4-mask-size": strconv.Itoa(s.topology().Clusters[0].NodeMask),
				"enable-ipv4-masquerade":      "false",
				"ipv4-native-routing-cidr":    s.podCIDR().String(),
				"auto-direct-node-routes":     "true",
				"bgp-announce-pod-cidr":       "true",
				"bgp-config-path":             "/var/lib/cilium/bgp/config.yaml",
			}),
			Peers: []cilium.Peer{{Address: s.tor(), ASN: torASN, ClusterASN: clusterASN}},
		}
	}
	slice := "the slice with the vendor's watchers, node routes and BGP speaker; "
	if !speaker {
		slice = "the slice that writes the vendor's iptables rules, with static routes on the ToR; "
	}
	return Upgrade{
		Component: "cilium", Form: framework.Slice, Topology: s.topology(), Besides: slice + withKubeProxy,
		Images: func(version string) []string {
			c := at(version)
			images := []string{c.Agent, kubeadm.KubeProxyImage, workload.ProbeImage}
			if c.Operator != "" {
				images = append(images, c.Operator)
			}
			return images
		},
		Install: func(ctx context.Context, r *framework.Run, version string) error {
			if err := cilium.Uninstall(ctx, labaccess.Lab(r), labaccess.Cluster(r), nodes, s.podCIDR()); err != nil {
				return err
			}
			if err := kubeadm.ApplyKubeProxy(ctx, labaccess.Lab(r)); err != nil {
				return err
			}
			if speaker {
				if err := at(version).Announce(ctx, labaccess.Lab(r), labaccess.Cluster(r), nodes); err != nil {
					return err
				}
				return installed(ctx, r, true)
			}
			var routes errgroup.Group
			for _, node := range nodes {
				routes.Go(func() error {
					_, err := workload.Route(ctx, labaccess.Lab(r), node)
					return err
				})
			}
			if err := errors.Join(routes.Wait(), at(version).WriteRules(ctx, labaccess.Cluster(r), nodes)); err != nil {
				return err
			}
			return installed(ctx, r, false)
		},
		Ends: s.ends(), Paths: s.paths(probe.DefaultInterval, probe.DefaultTCPInterval),
		Release: func(ctx context.Context, r *framework.Run, version string) error {
			return at(version).Declare(ctx, labaccess.Cluster(r))
		},
		Nodes: nodes,
		Roll: func(ctx context.Context, r *framework.Run, node, version string) error {
			return at(version).Roll(ctx, labaccess.Lab(r), node)
		},
	}
}

// rulesConfig is Cilium's configuration with iptables masquerading, which is its default,
// with the keys of the version: 1.12 no longer reads the old key of the native CIDR.
func rulesConfig(s small, version string) cilium.Config {
	key := "native-routing-cidr"
	if atLeast(version, "1.12.0-rc0") {
		key = "ipv4-native-routing-cidr"
	}
	return cilium.Native.With(cilium.Config{key: s.podCIDR().String()})
}
