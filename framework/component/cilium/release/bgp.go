package release

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/objects"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
)

// BGP are a user's objects of BGP and pools of addresses, as a lab gets them.
type BGP struct {
	objects.Adapted
	// Labels are the labels of the Services whose addresses are announced.
	Labels map[string]string
	// Under says whether the agents ask the router for graceful restart, and by whose choice.
	Under string
}

const (
	kindCluster       = "CiliumBGPClusterConfig"
	kindPeer          = "CiliumBGPPeerConfig"
	kindAdvertisement = "CiliumBGPAdvertisement"
	kindPool          = "CiliumLoadBalancerIPPool"

	group = "cilium.io"
)

// AnnouncedLabels are [Announced].
func AnnouncedLabels() map[string]string { return labelsOf(Announced) }

func labelsOf(label string) map[string]string {
	key, value, _ := strings.Cut(label, ": ")
	return map[string]string{key: value}
}

// Adapt adapts a user's objects to a lab: each agent has one session, with the lab's router. It has the timers,
// families and graceful restart of one of the user's peers, and announces what the user's advertisements select. Pod
// ranges and the address of a Service are announced in any case. The user's pools must not overlap the lab's networks.
func (p Peering) Adapt(text string, networks []netip.Prefix) (BGP, error) {
	all, err := objects.Read(text)
	if err != nil {
		return BGP{}, err
	}
	a := &adapter{lab: p}
	for _, o := range all {
		if err := a.take(o, networks); err != nil {
			return BGP{}, fmt.Errorf("%s: %w", objects.Name(o), err)
		}
	}
	if a.own, err = workload.Objects(p.manifest(V2)); err != nil {
		return BGP{}, err
	}
	for _, o := range a.own {
		o.SetName("relapse-" + o.GetName()) // the user's may have its name
	}
	session := a.session()
	selector, err := a.families(session)
	if err != nil {
		return BGP{}, err
	}
	a.services(a.announced(session, selector))
	return a.BGP, a.Missing()
}

type adapter struct {
	BGP
	lab Peering
	// own are the lab's own objects: cluster, peer, pods, services, pool.
	own []*unstructured.Unstructured
}

// take adds an object of the user, unless a lab has no use for it.
func (a *adapter) take(o *unstructured.Unstructured, networks []netip.Prefix) error {
	switch kind := o.GetKind(); {
	case o.GroupVersionKind().Group != group:
		a.Say("%s: left out: it is not one of Cilium's types", objects.Name(o))
		return nil
	case kind == kindLayer2: // see AdaptLayer2
		return nil
	case kind == string(Policy):
		return fmt.Errorf("a lab has no objects of this type, which 1.19 no longer reads: expected %s, %s and %s in its place",
			kindCluster, kindPeer, kindAdvertisement)
	case kind == kindPool:
		for _, block := range maps(o.Object, "spec.blocks") {
			if err := objects.Overlap(rangeOf(block), networks); err != nil {
				return fmt.Errorf("spec.blocks: %w", err)
			}
		}
	case kind == "CiliumBGPNodeConfigOverride", kind == "CiliumBGPNodeConfig":
		a.Say("%s: left out: the lab's nodes have names, addresses and router IDs of their own", objects.Name(o))
		return nil
	case kind != kindCluster && kind != kindPeer && kind != kindAdvertisement:
		a.Say("%s: left out: it is not of BGP", objects.Name(o))
		return nil
	}
	o.SetNamespace("")
	a.Objects = append(a.Objects, o)
	return nil
}

func rangeOf(block map[string]any) string {
	if cidr, ok := block["cidr"].(string); ok {
		return cidr
	}
	return fmt.Sprintf("%v-%v", block["start"], cmp.Or(block["stop"], block["start"]))
}

func maps(fields map[string]any, path string) []map[string]any {
	value, _ := chart.Get(fields, path)
	list, _ := value.([]any)
	return each.As[map[string]any](list)
}

// peer is a user's peer: its object, its instance and fields there, and its configuration, which may be nil.
type peer struct {
	cluster          *unstructured.Unstructured
	instance, fields map[string]any
	config           *unstructured.Unstructured
}

func (p peer) graceful() bool {
	if p.config == nil {
		return false
	}
	on, _ := chart.Get(p.config.Object, "spec.gracefulRestart.enabled")
	return on == true
}

// session leaves one of the user's peers, for which the lab's router stands, and returns its configuration. It takes
// the first without graceful restart, if there is one: its router drops the routes of a node whose agent is replaced.
func (a *adapter) session() *unstructured.Unstructured {
	peers := a.peers()
	if len(peers) == 0 {
		a.ownPeer()
		peers = a.peers()
	}
	one, why := peers[0], ""
	if i := slices.IndexFunc(peers, func(p peer) bool { return !p.graceful() }); i > 0 {
		one, why = peers[i], ", the first without graceful restart"
	}
	var others []string
	for _, p := range peers {
		if p.cluster != one.cluster || fmt.Sprint(p.fields) != fmt.Sprint(one.fields) {
			others = append(others, fmt.Sprintf("%v of %s", p.fields["name"], p.cluster.GetName()))
		}
	}
	if len(others) > 0 {
		a.Say("peers %s: left out: the lab has one router, which stands for %v of %s%s",
			strings.Join(others, ", "), one.fields["name"], one.cluster.GetName(), why)
	}
	a.Objects = slices.DeleteFunc(a.Objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kindCluster && o != one.cluster })
	at, _ := a.Spec(one.cluster)
	spec := at.Values
	at.Drop("every node of the lab is a peer", "nodeSelector")
	at.Values = one.instance
	at.Set("localASN", int64(a.lab.ASN))
	at.Values = one.fields
	at.Drop("the router is the lab's", "autoDiscovery")
	at.Set("peerASN", int64(a.lab.RoutersASN))
	at.Set("peerAddress", a.lab.Routers[0].String())
	a.Under = restartOf(one)
	if a.lab.GracefulRestart { // the lab's own, where the user's objects do not say
		a.Under = GracefulRestart
	}
	if one.config == nil {
		a.Own("the manifests have none of the peer", a.own[1])
		one.config, one.fields["peerConfigRef"] = a.own[1], map[string]any{"name": a.own[1].GetName()}
	}
	one.instance["peers"], spec["bgpInstances"] = []any{one.fields}, []any{one.instance}
	return a.configure(one.config)
}

// GracefulRestart is BGP.Under of the lab's own objects with graceful restart.
const GracefulRestart = "with graceful restart of BGP"

// DefaultRestart is BGP.Under of objects that say nothing of graceful restart.
const DefaultRestart = "without graceful restart of BGP, the vendor's default"

func restartOf(p peer) string {
	switch {
	case p.config == nil && p.fields["peerConfigRef"] != nil:
		return DefaultRestart + ": the manifests lack the peer's " + kindPeer
	case p.config == nil:
		return DefaultRestart
	case p.graceful():
		return "with graceful restart of BGP, as in the manifests"
	}
	return "without graceful restart of BGP, as in the manifests"
}

func (a *adapter) peers() []peer {
	var all []peer
	for _, cluster := range a.Of(kindCluster) {
		for _, instance := range maps(cluster.Object, "spec.bgpInstances") {
			for _, fields := range maps(instance, "peers") {
				all = append(all, peer{cluster, instance, fields, a.configOf(cluster, fields)})
			}
		}
	}
	return all
}

func (a *adapter) configOf(cluster *unstructured.Unstructured, fields map[string]any) *unstructured.Unstructured {
	name, refers := chart.Get(fields, "peerConfigRef.name")
	for _, o := range a.Of(kindPeer) {
		if refers && o.GetName() == name {
			return o
		}
	}
	if refers {
		a.Say("%s: peerConfigRef: the manifests have no %s %v", objects.Name(cluster), kindPeer, name)
	}
	return nil
}

// ownPeer adds the lab's own peer for a user without one, with one of the user's configurations, if there are any.
func (a *adapter) ownPeer() {
	instance := maps(a.own[0].Object, "spec.bgpInstances")[0]
	fields := maps(instance, "peers")[0]
	instance["peers"] = []any{fields}
	delete(fields, "peerConfigRef")
	configs := a.Of(kindPeer)
	if len(configs) > 0 {
		one := configs[max(0, slices.IndexFunc(configs, func(o *unstructured.Unstructured) bool { return !peer{config: o}.graceful() }))]
		fields["peerConfigRef"] = map[string]any{"name": one.GetName()}
	}
	a.Own("there is no peer", a.own[0])
}

// configure removes from a peer's configuration what the lab's router has otherwise.
func (a *adapter) configure(config *unstructured.Unstructured) *unstructured.Unstructured {
	if (peer{config: config}).graceful() {
		a.Say("graceful restart: the lab's router keeps the routes of a peer that asks for it (RFC 4724), and whether yours does is not tested")
	}
	f, _ := a.Spec(config)
	f.Drop("the lab's router has no password", "authSecretRef")
	f.Drop("the lab's router has the port 179", "transport.peerPort")
	f.Drop("the nodes' addresses are the lab's", "transport.localPort", "transport.sourceInterface")
	return config
}

// families is the selector of what is announced by IPv4; a configuration without one gets it. The router of a lab of
// IPv4 negotiates no other family: GoBGP ends a session over which it gets routes of another one.
func (a *adapter) families(config *unstructured.Unstructured) (selector map[string]any, err error) {
	name := objects.Name(config)
	var one, other, six map[string]any
	for _, f := range maps(config.Object, "spec.families") {
		found, _ := f["advertisements"].(map[string]any)
		if f["afi"] == "ipv4" && f["safi"] == "unicast" {
			one, selector = f, found
			continue
		}
		if a.lab.Dual && f["afi"] == "ipv6" && f["safi"] == "unicast" {
			six, other = f, found
			continue
		}
		has := map[bool]string{true: "unicast", false: "IPv4 unicast"}[a.lab.Dual]
		a.Say("%s: families: %v %v is removed: the lab has %s alone", name, f["afi"], f["safi"], has)
		if other == nil {
			other = found
		}
	}
	if one == nil {
		a.Say("%s: families: ipv4 unicast is added", name)
		one, selector = map[string]any{"afi": "ipv4", "safi": "unicast"}, other
	}
	if selector == nil {
		a.Say("%s: it announces nothing: the lab's own advertisements are", name)
		key, value, _ := strings.Cut(Announced, ": ")
		selector = map[string]any{"matchLabels": map[string]any{key: value}}
	}
	one["advertisements"] = selector
	if _, ok := objects.LabelsFor(objects.Selector(selector), nil); !ok {
		return nil, fmt.Errorf("%s: families: no advertisement can have the labels that %v asks for", name, selector)
	}
	if a.lab.Dual {
		a.sessionV6(config, six, selector)
	}
	chart.Set(config.Object, "spec.families", []any{one})
	return selector, nil
}

// sessionV6 adds a session with the router by IPv6, with a configuration of its own for that family: see Peering.
func (a *adapter) sessionV6(config *unstructured.Unstructured, family, selector map[string]any) {
	if family == nil {
		a.Say("%s: families: ipv6 unicast is added", objects.Name(config))
		family = map[string]any{"afi": "ipv6", "safi": "unicast"}
	}
	if family["advertisements"] == nil {
		family["advertisements"] = selector
	}
	a.Say("%s: the lab has a session for each of its families, with the address of the router of that family", objects.Name(config))
	own := config.DeepCopy()
	own.SetName("relapse-v6-" + config.GetName())
	a.Objects = append(a.Objects, own)
	instance := maps(a.Of(kindCluster)[0].Object, "spec.bgpInstances")[0]
	first := maps(instance, "peers")[0]
	second := chart.Merge(first, map[string]any{
		"name": "relapse-v6", "peerAddress": topology.IPv6.Addr(a.lab.Routers[0]).String(),
		"peerConfigRef": map[string]any{"name": own.GetName()},
	})
	instance["peers"] = []any{first, second}
	chart.Set(own.Object, "spec.families", []any{family})
}

// announced are the advertisements that a selector selects, with the lab's own of pod ranges if none announces them.
func (a *adapter) announced(config *unstructured.Unstructured, selector map[string]any) (all []map[string]any, labels map[string]string) {
	s := objects.Selector(selector)
	labels, _ = objects.LabelsFor(s, nil)
	pods := false
	for _, o := range a.Of(kindAdvertisement) {
		if !objects.Selects(s, o.GetLabels()) {
			a.Say("%s: the families of %s do not select it", objects.Name(o), config.GetName())
			continue
		}
		for _, advertisement := range maps(o.Object, "spec.advertisements") {
			all = append(all, advertisement)
			pods = pods || advertisement["advertisementType"] == "PodCIDR"
		}
	}
	if !pods {
		a.own[2].SetLabels(labels)
		a.Own("none announces pod ranges", a.own[2])
	}
	return all, labels
}

// services chooses labels with which the lab's Services get addresses from the user's pools that the user's
// advertisements announce. If no labels do, the lab adds a pool, and if need be an advertisement, of its own.
func (a *adapter) services(advertisements []map[string]any, labels map[string]string) {
	pools := slices.DeleteFunc(a.Of(kindPool), func(o *unstructured.Unstructured) bool {
		disabled, _ := chart.Get(o.Object, "spec.disabled")
		lacks := func(family func(string) bool) bool {
			return !slices.ContainsFunc(maps(o.Object, "spec.blocks"), func(b map[string]any) bool { return family(rangeOf(b)) })
		}
		return disabled == true || lacks(objects.IPv4) || a.lab.Dual && lacks(objects.IPv6)
	})
	var some map[string]string // labels that an advertisement selects
	for _, advertisement := range advertisements {
		addresses, _ := chart.Get(advertisement, "service.addresses")
		list, _ := addresses.([]any)
		selected, ok := labelsOfService(advertisement["selector"], nil)
		if !ok || !slices.Contains(list, any("LoadBalancerIP")) {
			continue
		}
		if some == nil {
			some = selected
		}
		if a.fromPool(pools, selected) && objects.Selects(objects.Selector(advertisement["selector"]), a.Labels) {
			return
		}
	}
	if some == nil {
		a.own[3].SetLabels(labels)
		a.Own("none announces the address of a Service of type LoadBalancer", a.own[3])
		some = AnnouncedLabels()
		if a.fromPool(pools, some) {
			return
		}
	}
	a.Labels = some
	families := map[bool]string{true: "addresses of both families", false: "an address of IPv4"}[a.lab.Dual]
	a.Own("none gives "+families+" to the lab's Service", a.own[4])
}

// fromPool adds the labels for which one of the pools asks, for the lab's Services; false if no pool takes them.
func (a *adapter) fromPool(pools []*unstructured.Unstructured, labels map[string]string) bool {
	for _, pool := range pools {
		selector, there := chart.Get(pool.Object, "spec.serviceSelector")
		if !there || selector == nil {
			a.Labels = labels
			return true
		}
		if selected, ok := labelsOfService(selector, labels); ok {
			a.Labels = selected
			return true
		}
	}
	return false
}

// labelsOfService are labels with which a selector selects a Service. Cilium adds its name and namespace to them.
func labelsOfService(selector any, with map[string]string) (map[string]string, bool) {
	labels, ok := objects.LabelsFor(objects.Selector(selector), with)
	for key := range labels {
		ok = ok && !strings.HasPrefix(key, "io.kubernetes.service.")
	}
	return labels, ok
}

// Apply waits until the operator has registered the types, and applies the objects in this version of them.
func (b BGP) Apply(types Types) framework.Action { return apply(inVersion(types, b.Objects)) }

// inVersion returns the objects in a version of their types. The type of layer 2 has one version alone.
func inVersion(types Types, objects []*unstructured.Unstructured) (all []*unstructured.Unstructured) {
	for _, o := range objects {
		o = o.DeepCopy()
		if o.GetKind() != kindLayer2 {
			o.SetAPIVersion(string(types))
		}
		all = append(all, o)
	}
	return all
}

func apply(all []*unstructured.Unstructured) framework.Action {
	return labaccess.OnCluster(func(ctx context.Context, c *kindlab.Cluster) error {
		return workload.ApplyWhenTaken(ctx, c, "Cilium's types to be known", typesWithin, all...)
	})
}
