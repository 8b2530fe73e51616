package upgrade

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
)

// ciliumUpgrade upgrades Cilium by the vendor's chart of each version, with the same values.
//
// The values are the user's, adapted to the lab (package labvalues), or none.
//
// Routers learn the pods' ranges by BGP if the values switch it on. With native routing and without BGP, routers have
// static routes. With a tunnel they have no routes, as outside of a lab: then only the node port leads from outside to
// pods.
//
// BGP is configured by the old version's newest types, in a downgrade by the new version's. If the new version has
// newer types and still serves the old ones, the last step of the upgrade replaces the objects.
//
// Graceful restart is the user's setting. If the user's manifests have no peers, the setting is unknown: the upgrade is
// made without graceful restart, the vendor's default, and Otherwise with it.
func ciliumUpgrade(from, to string, given Settings) (Upgrade, error) {
	switch {
	case !atLeast(from, labvalues.First) || !atLeast(to, labvalues.First):
		return Upgrade{}, fmt.Errorf("an upgrade of cilium from %s to %s has no lab: expected two versions from %s on", from, to, labvalues.First)
	case given.Mode != "":
		return Upgrade{}, errors.New("the lab of an upgrade of cilium takes no mode: its values choose it")
	}
	u, err := ciliumUnder(from, to, given, false)
	if err != nil {
		return u, err
	}
	if _, peers, err := release.OfBGP(given.Manifests); err != nil || peers {
		return u, err
	}
	if release.Values(given.Values).BGP() {
		var other Upgrade
		other, err = ciliumUnder(from, to, given, true)
		u.Otherwise = &other
	}
	return u, err
}

// ciliumUnder is ciliumUpgrade with or without graceful restart, if the manifests do not decide. Long: a field each.
func ciliumUnder(from, to string, given Settings, graceful bool) (Upgrade, error) {
	values := release.Values(given.Values)
	switch given.Family {
	case framework.Dual:
		values = chart.With(values, []chart.Setting{{Path: "ipv6.enabled", Value: true}})
	case string(topology.IPv4):
		values = chart.With(values, []chart.Setting{{Path: "ipv6.enabled", Value: false}, {Path: "k8s.requireIPv6PodCIDR", Value: false}})
	}
	s := small{component: "cilium", number: 62, dual: values.IPv6()}
	w := wholeCilium{small: s, values: values, graceful: graceful, pool: netip.PrefixFrom(s.address(128, 0), 24), balancer: new([]netip.Addr)}
	types, newer := release.TypesOf(from), release.TypesOf(to)
	if atLeast(from, to) {
		types = newer
	}
	if err := w.peer(types, given); err != nil {
		return Upgrade{}, err
	}
	w.dns = kubeadm.DNS{Version: kubeadm.CoreDNSVersion, Config: ownCorefile(s)}
	mode, beside := "tunnel", withKubeProxy
	switch {
	case values.BGP() && !values.Native():
		mode = "tunnel, with the pods' ranges announced to the ToR by BGP"
	case values.BGP():
		mode = "native routing, announced to the ToR by BGP"
	case values.Native():
		mode = "native routing, with static routes on the ToR"
	}
	if values.ReplacesKubeProxy() {
		beside = "no kube-proxy"
	}
	set, replaced := w.settings()
	replaced = append(replaced, w.bgp.Replaced...)
	if !s.dual && release.Values(given.Values).IPv6() {
		replaced = append(replaced, "ipv6.enabled: true is replaced by false: "+onlyIPv4)
	}
	t, ends := s.topology(), s.ends()
	paths := s.paths(probe.DefaultInterval, probe.DefaultTCPInterval, values.Native() || values.BGP())
	paths = append(paths, sourcePath(), serviceLookups(w.dns.Config.Zone))
	if values.BGP() {
		t.Routed = append(t.Routed, w.pool)
		ends, paths = append(ends, balancedEnd(w.balancer)), append(paths, balancerPaths(loadBalancer)...)
	}
	if s.dual {
		paths = onDual(paths)
	}
	var failovers []FailoverKind
	if values.Layer2() {
		if err := w.answer(given); err != nil {
			return Upgrade{}, err
		}
		ends, paths, failovers = append(ends, w.layer2.ends()...), append(paths, w.layer2.paths()...), w.layer2.failovers(values.LeaseChance())
		mode += ", with addresses of Services for which the agents of " + strings.Join(speakers, " and ") + " answer by ARP"
		replaced = append(replaced, w.answering.Replaced...)
		if s.dual {
			replaced = append(replaced, ofIPv4)
		}
	}
	var migrate Migration
	if values.BGP() && types == release.Alpha && newer == release.V2 {
		mode += fmt.Sprintf(" (objects of %s, which become objects of %s once all agents are of %s)", types, newer, to)
		migrate = Migration{Name: fmt.Sprintf("the objects of BGP become objects of %s", newer), Do: w.configure(newer)}
	}
	return Upgrade{
		Component: "cilium", Form: framework.Whole, Topology: t, Replaced: replaced, Migrate: migrate,
		Besides: fmt.Sprintf("installed by the vendor's chart in the mode %s; values that the lab sets: %s; %s; CoreDNS %s",
			mode, strings.Join(set, ", "), beside, w.dns.Version),
		Images: w.images, Install: w.install, Ends: ends, Paths: paths, Failovers: failovers, Nodes: allNodes,
		Release: func(version string) framework.Action { return w.at(version).Apply },
		Roll: func(ctx context.Context, r *framework.Run, node, version string) error {
			return w.at(version).Restart(node)(ctx, r)
		},
		Explain: explainCilium,
		Pods:    release.Pods,
		Passing: func(p netip.Prefix) bool {
			return !s.podCIDR().Contains(p.Addr()) && !topology.IPv6.Prefix(s.podCIDR()).Contains(p.Addr())
		},
		Under:     w.bgp.Under,
		Normalize: w.layer2.normalize(func(_, what string) string { return what }),
	}.withAgents(release.Pods[0], cilium.Agent, w.works), nil
}

type wholeCilium struct {
	small
	values release.Values
	pool   netip.Prefix // of the addresses of Services
	// bgp are the user's objects; if empty, the lab has its own.
	bgp release.BGP
	// graceful is set if the lab's own objects ask for graceful restart.
	graceful bool
	dns      kubeadm.DNS
	// layer2 are the Services whose addresses nodes answer for by ARP; empty unless the values ask for it.
	layer2    layer2
	answering release.Layer2
	// balancer are the addresses that Cilium has chosen for the Service.
	balancer *[]netip.Addr
}

// peer adapts the user's objects of BGP. If there are none, the lab has its own.
func (w *wholeCilium) peer(types release.Types, given Settings) (err error) {
	some, _, err := release.OfBGP(given.Manifests)
	switch {
	case err != nil:
		return fmt.Errorf("objects of Cilium: %w", err)
	case given.Manifests != "" && !w.values.BGP() && !w.values.Layer2():
		return errors.New("the manifests of Cilium are its objects of BGP and of layer 2, which it does not read unless the values have " +
			"bgpControlPlane.enabled or l2announcements.enabled: true")
	case some && w.values.BGP() && types == release.Policy:
		return errors.New("manifests with objects of BGP are taken from Cilium 1.16 on, which reads them")
	}
	some = some && w.values.BGP()
	var left []string
	if given.Manifests != "" {
		left, err = release.LeftOut(given.Manifests, some, w.values.Layer2())
	}
	if t := w.on(given.Subnets); err == nil && some {
		peering := release.PeeringOf(t)
		peering.LoadBalancers, peering.GracefulRestart = w.pool, w.graceful
		w.bgp, err = peering.Adapt(given.Manifests, append(w.networks(t), w.pool))
	}
	if err != nil {
		return fmt.Errorf("objects of Cilium: %w", err)
	}
	if w.values.BGP() && !some {
		w.bgp.Labels, w.bgp.Under = release.AnnouncedLabels(), release.DefaultRestart
		if w.graceful {
			w.bgp.Under = release.GracefulRestart
		}
		w.bgp.Say("CiliumBGPClusterConfig, CiliumBGPPeerConfig, CiliumBGPAdvertisement and CiliumLoadBalancerIPPool " +
			"are replaced by one peer, to which pod ranges and the address of a Service are announced: " +
			"once without graceful restart, the vendor's default, with which a router drops the routes of a node " +
			"while its agent is replaced, and once with it. --manifests FILE takes your own")
	}
	w.bgp.Replaced = append(w.bgp.Replaced, left...)
	return nil
}

// answer adapts the user's policies of layer 2. If there are none, the lab has its own.
func (w *wholeCilium) answer(given Settings) (err error) {
	addresses := linkRange(w.on(given.Subnets))
	if w.answering, err = release.AdaptLayer2(given.Manifests, addresses, speakers); err != nil {
		return fmt.Errorf("objects of Cilium: %w", err)
	}
	w.answering.Say("no Service is of externalTrafficPolicy Local, for which Cilium's leases do not follow the endpoints")
	w.layer2 = layer2{
		ranges: []snapshot.AddressRange{addresses}, addresses: map[string]netip.Addr{}, labels: w.answering.Labels,
		annotation: "lbipam.cilium.io/ips: " + addresses.First.String(), class: release.Answerer,
	}
	return nil
}

// configure creates the objects of BGP by some types, in place of objects of other types.
func (w wholeCilium) configure(types release.Types) framework.Action {
	if len(w.bgp.Objects) > 0 {
		return w.bgp.Apply(types)
	}
	return release.Peering{LoadBalancers: w.pool, GracefulRestart: w.graceful}.Apply(types)
}

func (w wholeCilium) at(version string) release.Release {
	return release.Release{Version: version, Values: w.values}
}

func (w wholeCilium) settings() (set, replaced []string) {
	if _, there := chart.Get(w.values, "securityContext.capabilities"); there {
		replaced = append(replaced, "securityContext.capabilities has no effect: the lab's agents are privileged")
	}
	t := w.topology()
	for _, setting := range w.at("").Settings(t, netip.AddrPortFrom(t.Clusters[0].Nodes[0].Links[0].Address, apiServerPort)) {
		set = append(set, setting.String())
		if was, users := chart.Get(w.values, setting.Path); users && fmt.Sprint(was) != fmt.Sprint(setting.Value) {
			replaced = append(replaced, fmt.Sprintf("%s %s is replaced by %v: %s",
				setting.Path, chart.Shown(setting.Path, was), setting.Value, setting.Why))
		}
	}
	return set, replaced
}

func (w wholeCilium) images(version string) []string {
	images := append(release.Images(version), workload.ProbeImage, kubeadm.DNSImage(w.dns.Version))
	if !w.values.ReplacesKubeProxy() {
		images = append(images, kubeadm.KubeProxyImage)
	}
	return images
}

func (w wholeCilium) install(version string) framework.Action {
	values, proxy := w.values, kubeadm.ApplyKubeProxy
	if values.ReplacesKubeProxy() {
		proxy = labaccess.OnCluster(kubeadm.KubeProxy.Delete)
	}
	steps := []framework.Action{release.Uninstalled(allNodes, w.podCIDR()), proxy, w.at(version).Apply}
	if values.BGP() {
		steps = append(steps, w.configure(release.TypesOf(version)))
	}
	steps = append(steps, w.at(version).Ready(allNodes...))
	if values.Native() && !values.BGP() {
		steps = append(steps, release.Routed(allNodes...))
	}
	with := services{kubeProxy: !values.ReplacesKubeProxy(), sessions: values.BGP()}
	steps = append(steps, framework.AtOnce(installed(with), w.dns.Apply(dnsRollWithin)))
	if values.Layer2() {
		steps = append(steps, w.answering.Apply(release.TypesOf(version)), w.layer2.install)
	}
	if values.BGP() {
		steps = append(steps, balance(w.bgp.Labels), addressed(w.balancer))
	}
	return framework.InOrder(steps...)
}

func (w wholeCilium) works(ctx context.Context, r *framework.Run, node, _ string, began time.Time) error {
	asks, ctx := errgroup.WithContext(ctx)
	asks.Go(func() error { return startsPod(ctx, r, node) })
	if w.values.BGP() {
		asks.Go(func() error { return announcesAnew(ctx, r, node, w.bgp.Labels, began) })
	}
	if w.values.ReplacesKubeProxy() {
		asks.Go(func() error { return followsServices(ctx, r, ciliumProxies, node, reachedWithin) })
	}
	return asks.Wait()
}

func explainCilium(ctx context.Context, r *framework.Run, node string) string {
	state, err := release.StateOf(ctx, labaccess.Lab(r).Node(node))
	if err != nil {
		return "what Cilium says of itself could not be read: " + err.Error()
	}
	return "Cilium on " + node + " says of itself: " + state.String()
}

// ownCorefile is kubeadm's Corefile. It forwards to a port where nothing listens: no probe looks up other names.
func ownCorefile(s small) kubeadm.Corefile {
	config, err := kubeadm.NewCorefile("", netip.AddrPortFrom(s.address(4, 11), upstreamPort))
	if err != nil {
		panic(err) // kubeadm's own Corefile
	}
	return config
}

const apiServerPort = 6443
