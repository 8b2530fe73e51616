package upgrade

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// metalLBUpgrade upgrades MetalLB by the vendor's chart of the version. It is long because it sets each field once.
func metalLBUpgrade(from, to string, given Settings) (Upgrade, error) {
	if given.Config != "" {
		return Upgrade{}, errors.New("MetalLB is configured by the values of its chart and by objects: expected values and manifests at most")
	}
	lab := small{component: "metallb", number: 65, dual: given.Family == framework.Dual}
	m := metalLB{small: lab, values: given.Values, balancer: new([]netip.Addr)}
	mode, err := m.choose(from, to, given.Mode)
	if err != nil {
		return Upgrade{}, err
	}
	t := m.on(given.Subnets)
	network := metallb.Network{
		Pool: netip.PrefixFrom(m.address(128, 0), 24), HasBFD: mode == metallb.FRR,
		Router: topology.BGPPeer{Address: addressOn(t, tor), ASN: topology.TorASN, ClusterASN: topology.ClusterASN},
		Link:   linkRange(t), Speakers: speakers,
	}
	t.Routed = append(slices.Clone(t.Routed), network.Pool)
	err = m.configure(given.Manifests, t, network)
	both := given.Family != framework.Dual && m.resources.BothFamilies
	if both && mode == metallb.FRR && given.Family == "" {
		m.dual, t.Dual = true, true
		err = m.configure(given.Manifests, t, network)
	}
	if err != nil {
		return Upgrade{}, fmt.Errorf("MetalLB's objects: %w", err)
	}
	// From 0.15 on the prefix is metallb.io, and the older prefix works as well.
	m.layer2 = layer2{addresses: map[string]netip.Addr{}, ranges: m.resources.Ranges, local: true}
	m.layer2.annotation = "metallb.universe.tf/address-pool: " + m.resources.Layer2
	replaced, beside := append(metallb.Overrides(m.values, from, to), m.resources.Replaced...), "native BGP"
	if strings.Contains(mode, metallb.FRR) {
		beside = "BGP by FRR"
		replaced = append(replaced, "the FRR that the chart names is replaced by Debian 13's 10.3, with both versions: "+
			"a change of FRR is not tested")
	}
	if both && given.Family != "" {
		replaced = append(replaced, "addresses of IPv6 in the pools are not used: "+onlyIPv4)
	} else if both && !m.dual {
		replaced = append(replaced, "addresses of IPv6 in the pools are not used, in the mode "+mode+": "+metallb.NativeIPv4)
	}
	if m.dual && m.answers() {
		replaced = append(replaced, ofIPv4)
	}
	if m.resources.BFD.Multiplier > 0 {
		beside += " with BFD, to a ToR of FRR"
		t.Routers = topology.WithBFD(t.Routers, m.resources.BFD)
	}
	if !m.resources.BGP {
		beside = "no BGP"
	}
	if m.answers() {
		beside += "; addresses of the pool " + m.resources.Layer2 + " are on the nodes' link, and the ToR asks for them by ARP"
	}
	set := each.Of(m.at(to).Settings(), chart.Setting.String)
	ends, paths := m.ends(), m.paths(probe.DefaultInterval, probe.DefaultTCPInterval, true)
	if m.resources.BGP {
		ends, paths = append(ends, balancedEnd(m.balancer)), append(balancerPaths(loadBalancer), paths...)
	}
	if m.dual {
		paths = onDual(paths)
	}
	var failovers []FailoverKind
	if m.answers() {
		ends, paths, failovers = append(ends, m.layer2.ends()...), append(m.layer2.paths(), paths...), m.layer2.failovers(0)
	}
	return Upgrade{
		Component: "metallb", Form: framework.Whole, Topology: t, Mode: mode, Replaced: replaced,
		Besides: fmt.Sprintf("installed by the vendor's chart with %s; values that the lab sets: %s; %s, %s",
			beside, strings.Join(set, ", "), withKubeProxy, podsWired),
		Fit: func() error {
			switch {
			case mode == metallb.FRRK8s:
				return metallb.NoFRRK8s()
			case m.dual && mode != metallb.FRR:
				return metallb.NoIPv6(mode)
			}
			return nil
		},
		Images: func(version string) []string {
			return append(m.at(version).Images(), kubeadm.KubeProxyImage, workload.ProbeImage)
		},
		Install: m.install, Release: m.release, Roll: restart(metallb.Speaker), Nodes: allNodes,
		Ends: ends, Paths: paths, Failovers: failovers,
		Pods:      []workload.Pods{metallb.Speaker.Pods, metallb.Controller.Pods},
		Normalize: m.layer2.normalize(withoutPods("metallb-system/", ":9443")),
		Passing:   func(netip.Prefix) bool { return true }, // a speaker announces only Services
	}.withAgents(metallb.Speaker.Pods, metallb.SpeakerImage, m.works), nil
}

type metalLB struct {
	small
	values    map[string]any
	resources metallb.Resources
	layer2    layer2
	// balancer are the addresses that MetalLB has chosen for the Service.
	balancer *[]netip.Addr
}

// configure adapts the user's objects to a lab. Without manifests the lab has its own objects.
func (m *metalLB) configure(manifests string, t topology.Topology, network metallb.Network) (err error) {
	network.Dual, network.Networks = m.dual, m.networks(t)
	m.resources, err = metallb.NewResources(manifests, network)
	return err
}

func (m metalLB) answers() bool { return m.resources.Layer2 != "" }

func (m metalLB) at(version string) metallb.Release {
	return metallb.Release{Version: version, Values: m.values}
}

// choose sets the values to a given mode, if any, and returns the mode that the values choose.
func (m *metalLB) choose(from, to, given string) (mode string, err error) {
	mode = metallb.ModeOf(m.at(from), m.at(to))
	switch given {
	case "", mode:
		return mode, nil
	case metallb.Native, metallb.FRR, metallb.FRRK8s:
		if _, users := chart.Get(m.values, "speaker.frr.enabled"); users || mode == metallb.FRRK8s {
			return "", fmt.Errorf("the mode %s contradicts the values, which choose %s: expected one of both", given, mode)
		}
		m.values = metallb.In(given, m.values)
		return given, nil
	}
	return "", fmt.Errorf("%q is no mode of MetalLB: expected %s or %s", given, metallb.Native, metallb.FRR)
}

func (m metalLB) install(version string) framework.Action {
	steps := []framework.Action{
		workload.WireNodes, kubeadm.ApplyKubeProxy,
		framework.AtOnce(
			installed(services{kubeProxy: true}),
			// A reused lab may have speakers. With OnDelete they would not be replaced.
			framework.InOrder(metallb.Uninstall, m.configured(version)),
		),
		metallb.Speaker.Everywhere(rollWithin),
	}
	if m.answers() {
		steps = append(steps, m.layer2.install)
	}
	if m.resources.BGP {
		steps = append(steps, balance(nil), sessionsOfAnyAge,
			func(ctx context.Context, r *framework.Run) error { return m.bfdUp(ctx, r, allNodes...) }, addressed(m.balancer))
	}
	return framework.InOrder(steps...)
}

// configured applies a version and then the resources, which its webhook checks.
func (m metalLB) configured(version string) framework.Action {
	return framework.InOrder(m.at(version).Apply, m.resources.Create(version))
}

// bfdUp waits for the router's BFD sessions with nodes, if the resources have a BFD profile.
func (m metalLB) bfdUp(ctx context.Context, r *framework.Run, nodes ...string) error {
	if m.resources.BFD.Multiplier == 0 {
		return nil
	}
	return labaccess.Lab(r).BFDUp(ctx, nodes)
}

// release also asks the controller for new work: its webhook checks the resources, and a new Service gets an address.
func (m metalLB) release(version string) framework.Action {
	fresh := freshlyBalanced(nil)
	if !m.resources.BGP {
		fresh.OnlyIPv4 = true
		fresh.Annotation = m.layer2.annotation
	}
	return framework.InOrder(m.configured(version), func(ctx context.Context, r *framework.Run) error {
		return withFresh(ctx, r, fresh, func([]netip.Addr) error { return nil })
	})
}

func (m metalLB) works(ctx context.Context, r *framework.Run, node, _ string, began time.Time) error {
	var asks []framework.Action
	if m.resources.BGP {
		asks = append(asks, func(ctx context.Context, r *framework.Run) error {
			if err := announcesAnew(ctx, r, node, nil, began); err != nil {
				return err
			}
			return m.bfdUp(ctx, r, node)
		})
	}
	if m.answers() {
		asks = append(asks, func(ctx context.Context, r *framework.Run) error { return m.layer2.answersAnew(ctx, r, node) })
	}
	err := framework.AtOnce(asks...)(ctx, r)
	if err == nil {
		return nil
	}
	// FRR 10.3 sometimes passes a configuration with stray bytes to zebra, and refuses it for that. The refused
	// configuration keeps its lock, and so FRR never takes another one.
	lost, unread := labaccess.Lab(r).Node(node).Exec(context.WithoutCancel(ctx), "sh", "-c",
		"grep -hs 'COMMIT_CONFIG request .* failed' /var/log/pods/metallb-system_*/frr/*.log | tail -n 1")
	if lost = strings.TrimSpace(lost); unread != nil || lost == "" {
		return err
	}
	return fmt.Errorf("the FRR of the lab has lost a configuration that the speaker on %s gave it, "+
		"which says nothing of MetalLB: %s (%v)", node, lost, err)
}
