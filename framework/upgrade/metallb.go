package upgrade

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
)

// metalLBUpgrade upgrades MetalLB by the vendor's chart of the version. Its speakers announce
// the address of a Service to the ToR.
func metalLBUpgrade() Upgrade {
	u, err := metalLBWith("0.14.8", "0.14.9", Settings{}) // Of calls With
	if err != nil {
		panic(err) // relapse's own resources
	}
	u.With = func(from, to string, s Settings) (Upgrade, error) {
		if s.Config != "" {
			return Upgrade{}, errors.New("MetalLB is configured by the values of its chart and by objects: expected values and manifests at most")
		}
		return metalLBWith(from, to, s)
	}
	return u
}

func metalLBWith(from, to string, given Settings) (Upgrade, error) {
	values := given.Values
	at := func(version string) metallb.Release { return metallb.Release{Version: version, Values: values} }
	mode := metallb.ModeOf(at(from), at(to))
	switch given.Mode {
	case "", mode:
	case metallb.Native, metallb.FRR, metallb.FRRK8s:
		if _, users := chart.Get(values, "speaker.frr.enabled"); users || mode == metallb.FRRK8s {
			return Upgrade{}, fmt.Errorf("the mode %s contradicts the values, which choose %s: expected one of both", given.Mode, mode)
		}
		values = metallb.In(given.Mode, values)
		mode = given.Mode
	default:
		return Upgrade{}, fmt.Errorf("%q is no mode of MetalLB: expected %s or %s", given.Mode, metallb.Native, metallb.FRR)
	}
	s := small{component: "metallb", number: 65}
	t := s.on(given.Subnets)
	router := metallb.Router{Address: addressOn(t, tor), ASN: torASN, ClusterASN: clusterASN}
	pool := netip.PrefixFrom(s.address(128, 0), 24)
	t.Routed = append(slices.Clone(t.Routed), pool)
	resources, err := metallb.DefaultResources(pool, router)
	if given.Manifests != "" {
		networks := []netip.Prefix{s.podCIDR(), t.Clusters[0].ServiceCIDR}
		for _, n := range t.Networks {
			networks = append(networks, n.Subnet)
		}
		resources, err = metallb.NewResources(given.Manifests, router, networks)
	}
	if err != nil {
		return Upgrade{}, fmt.Errorf("MetalLB's objects: %w", err)
	}
	replaced, beside := append(metallb.Overrides(values, from, to), resources.Replaced...), "native BGP"
	if strings.Contains(mode, metallb.FRR) {
		beside = "BGP by FRR"
		replaced = append(replaced, "the FRR that the chart names is replaced by Debian 13's 10.3, with both versions: a change of FRR is not tested")
	}
	var set []string
	for _, setting := range at(to).Settings() {
		set = append(set, setting.String())
	}
	nodes := []string{master, worker1, worker2}
	var address netip.Addr // MetalLB chooses it from the pools
	return Upgrade{
		Component: "metallb", Form: framework.Whole, Topology: t, Mode: mode, Replaced: replaced,
		Besides: fmt.Sprintf("installed by the vendor's chart with %s; values that the lab sets: %s; %s, %s", beside, strings.Join(set, ", "), withKubeProxy, podsWired),
		Fit: func() error {
			if mode != metallb.FRRK8s {
				return nil
			}
			return metallb.NoFRRK8s()
		},
		Images: func(version string) []string {
			return append(at(version).Images(), kubeadm.KubeProxyImage, workload.ProbeImage)
		},
		Install: func(ctx context.Context, r *framework.Run, version string) error {
			if err := wireAll(ctx, r); err != nil {
				return err
			}
			if err := kubeadm.ApplyKubeProxy(ctx, labaccess.Lab(r)); err != nil {
				return err
			}
			starts, startsCtx := errgroup.WithContext(ctx)
			starts.Go(func() error { return installed(startsCtx, r, services{kubeProxy: true}) })
			starts.Go(func() error {
				// A lab that is reused may have speakers: with OnDelete they are not replaced.
				if err := metallb.Uninstall(startsCtx, labaccess.Cluster(r)); err != nil {
					return err
				}
				if err := at(version).Apply(startsCtx, labaccess.Lab(r)); err != nil {
					return err
				}
				return metallb.Configure(startsCtx, labaccess.Cluster(r), resources)
			})
			if err := starts.Wait(); err != nil {
				return err
			}
			if err := applyLoadBalancer(ctx, r, balanced); err != nil {
				return err
			}
			if err := metallb.Speaker.Ready(ctx, labaccess.Cluster(r), nodes, rollWithin); err != nil {
				return err
			}
			if err := labaccess.Lab(r).SessionsUp(ctx, nodes, time.Time{}); err != nil { // of any age
				return err
			}
			var err error
			address, err = workload.BalancerAddress(ctx, labaccess.Cluster(r), balanced)
			return err
		},
		Ends: append(s.ends(), balancedEnd(&address)), Paths: append(loadBalancerPaths(), s.paths(probe.DefaultInterval, probe.DefaultTCPInterval, true)...),
		Release: func(ctx context.Context, r *framework.Run, version string) error {
			if err := at(version).Apply(ctx, labaccess.Lab(r)); err != nil {
				return err
			}
			return givesAddress(ctx, r, resources)
		},
		Nodes:     nodes,
		Roll:      restart(metallb.Speaker),
		Pods:      []workload.Pods{metallb.Speaker.Pods, metallb.Controller.Pods},
		Normalize: withoutPods("metallb-system/", ":9443"),
		Passing:   func(netip.Prefix) bool { return true }, // a speaker announces Services alone
	}.withAgents(all(metallb.Speaker.Pods), metallb.SpeakerImage, func(ctx context.Context, r *framework.Run, node, version string, began time.Time) error {
		if err := sessionsSince(ctx, r, node, version, began); err != nil {
			return err
		}
		return announces(ctx, r, node)
	}), nil
}

// givesAddress asks the controller that has just come up for what it does for new objects:
// its webhook takes the resources, and a new Service gets an address.
func givesAddress(ctx context.Context, r *framework.Run, resources metallb.Resources) error {
	if err := metallb.Configure(ctx, labaccess.Cluster(r), resources); err != nil {
		return err
	}
	return withFresh(ctx, r, func(netip.Addr) error { return nil })
}
