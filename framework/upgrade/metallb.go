package upgrade

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/probe/wire"
)

// loadBalancer is the endpoint at the address of the Service of type LoadBalancer.
const loadBalancer = "LoadBalancer address"

// metalLBUpgrade upgrades MetalLB by the vendor's manifest of the version. Its speakers
// announce the address of a Service to the ToR.
func metalLBUpgrade() Upgrade {
	u, err := metalLBWith(Settings{})
	if err != nil {
		panic(err) // relapse's own resources
	}
	u.With = func(_, _ string, s Settings) (Upgrade, error) {
		if s.Mode != "" || s.Config != "" {
			return Upgrade{}, fmt.Errorf("MetalLB runs with its native BGP and is configured by objects: expected manifests at most")
		}
		return metalLBWith(s)
	}
	return u
}

func metalLBWith(given Settings) (Upgrade, error) {
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
	replaced := append(slices.Clone(resources.Replaced),
		"speakers with FRR, which the vendor's chart installs by default, are replaced by those with native BGP: sessions and restarts of FRR are not tested")
	nodes := []string{master, worker1, worker2}
	var address netip.Addr // MetalLB chooses it from the pools
	ends := s.ends()
	lb := framework.PodOn(worker2)
	lb.Name, lb.Address = loadBalancer, func(*framework.Run) netip.AddrPort { return netip.AddrPortFrom(address, wire.DefaultPort) }
	return Upgrade{
		Component: "metallb", Form: framework.Whole, Topology: t, Replaced: replaced,
		Besides: "native BGP, " + withKubeProxy + ", " + podsWired,
		Images: func(version string) []string {
			return append(metallb.Images(version), kubeadm.KubeProxyImage, workload.ProbeImage)
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
				if err := metallb.Declare(startsCtx, labaccess.Lab(r), version); err != nil {
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
			address, err = metallb.Address(ctx, labaccess.Cluster(r), balanced)
			return err
		},
		Ends: append(ends, lb), Paths: append(loadBalancerPaths(), s.paths(probe.DefaultInterval, probe.DefaultTCPInterval, true)...),
		Release: func(ctx context.Context, r *framework.Run, version string) error {
			if err := metallb.Declare(ctx, labaccess.Lab(r), version); err != nil {
				return err
			}
			return givesAddress(ctx, r, resources)
		},
		Nodes: nodes,
		Roll: func(ctx context.Context, r *framework.Run, node, _ string) error {
			return metallb.Roll(ctx, labaccess.Lab(r), node)
		},
		Pods:      []workload.Pods{metallb.Speaker.Pods, metallb.Controller.Pods},
		Normalize: withoutPods("metallb-system/", ":9443"),
	}.crashing(all(metallb.Speaker.Pods), sessionsSince), nil
}

// balanced is the Service of type LoadBalancer in front of the pod on worker2.
const balanced = "balanced"

// givesAddress asks the controller that has just come up for what it does for new objects:
// its webhook takes the resources, and a new Service gets an address.
func givesAddress(ctx context.Context, r *framework.Run, resources metallb.Resources) error {
	const fresh = "fresh"
	if err := metallb.Configure(ctx, labaccess.Cluster(r), resources); err != nil {
		return err
	}
	if err := applyLoadBalancer(ctx, r, fresh); err != nil {
		return err
	}
	_, err := metallb.Address(ctx, labaccess.Cluster(r), fresh)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fresh}}
	return errors.Join(err, labaccess.Cluster(r).Client.Resources().Delete(ctx, service))
}

func applyLoadBalancer(ctx context.Context, r *framework.Run, name string) error {
	return workload.Apply(ctx, labaccess.Cluster(r), fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default}
spec:
  type: LoadBalancer
  selector: {%s: %s}
  ports:
  - {name: tcp, protocol: TCP, port: %d}
  - {name: udp, protocol: UDP, port: %[4]d}
`, name, workload.ProbeLabel, worker2, wire.DefaultPort))
}

// loadBalancerPaths are the paths from outside to the Service's address.
func loadBalancerPaths() []PathKind {
	to := func(protocols ...probe.Protocol) []probe.Probe {
		var all []probe.Probe
		for _, p := range protocols {
			all = append(all, probe.Probe{From: outside, To: loadBalancer, Protocol: p}.WithDefaults())
		}
		return all
	}
	return []PathKind{
		{Name: loadBalancer + ", outside, UDP", Probes: to(probe.UDP)},
		{Name: loadBalancer + ", outside, new connections", Probes: to(probe.TCP, probe.UDPFlow)},
		{Name: loadBalancer + ", outside, long-lived TCP", Probes: to(probe.Stream)},
	}
}
