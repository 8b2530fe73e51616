package metallb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/objects"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Resources are MetalLB's pools, peers and advertisements, as a lab gets them.
type Resources struct {
	objects.Adapted
	// BFD is the BFD of the user's peer: the router needs the same.
	BFD topology.BFD
	// Layer2 is the pool whose addresses are announced by ARP and not by BGP; empty if there is none.
	Layer2 string
	// Ranges are the addresses of Layer2.
	Ranges []snapshot.AddressRange
	// BGP is set if the address of a Service that names no pool is announced by BGP.
	BGP bool
	// BothFamilies is set if a pool that is announced by BGP has both families. CarriesBoth is set if the session with the
	// lab's router has to carry both, whatever the default of a version is.
	BothFamilies, CarriesBoth bool
}

// Network is where a lab announces addresses.
type Network struct {
	// Pool is the lab's own pool for addresses that are announced to the router by BGP.
	Pool   netip.Prefix
	Router topology.BGPPeer
	// HasBFD is set if the speakers and the router can have BFD.
	HasBFD bool
	// Link is the lab's own range for addresses that nodes answer for by ARP, in the nodes' network.
	Link snapshot.AddressRange
	// Speakers are the nodes that announce by ARP.
	Speakers []string
	// Networks are the networks that the user's pools must leave free.
	Networks []netip.Prefix
	// Dual is set for a lab of two families.
	Dual bool
}

// defaults are the lab's own, by their kind: a pool, the router, and an advertisement of every address.
var defaults = map[string]string{
	kindPool:          "{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: lab}, spec: {addresses: ['%s']}}",
	kindPeer:          "{apiVersion: metallb.io/v1beta2, kind: BGPPeer, metadata: {name: lab}, spec: {}}",
	kindBFD:           "{apiVersion: metallb.io/v1beta1, kind: BFDProfile, metadata: {name: '%s'}}",
	kindAdvertisement: "{apiVersion: metallb.io/v1beta1, kind: BGPAdvertisement, metadata: {name: lab}, spec: {}}",
	kindLayer2:        "{apiVersion: metallb.io/v1beta1, kind: L2Advertisement, metadata: {name: lab}, spec: {}}",
}

const (
	kindPool          = "IPAddressPool"
	kindPeer          = "BGPPeer"
	kindAdvertisement = "BGPAdvertisement"
	kindBFD           = "BFDProfile"
	kindLayer2        = "L2Advertisement"
)

// NewResources adapts the user's objects to a lab: a pool is announced by BGP to the lab's router, or by ARP on the
// nodes' network, or two pools, each in one way. The lab adds what the objects lack, and leaves out objects of other
// types. The user's pools must not overlap the lab's networks. Without objects of the user Replaced is empty.
func NewResources(text string, n Network) (Resources, error) {
	all, err := objects.Read(text)
	if err != nil {
		return Resources{}, err
	}
	others := func(o *unstructured.Unstructured) bool {
		return o.GroupVersionKind().Group != "metallb.io" && o.GetKind() != "ConfigMap"
	}
	if len(all) > 0 && !slices.ContainsFunc(all, func(o *unstructured.Unstructured) bool { return !others(o) }) {
		return Resources{}, fmt.Errorf("none of its %d objects is of MetalLB's types: "+
			"expected IPAddressPool, L2Advertisement, BGPPeer or BGPAdvertisement", len(all))
	}
	a := &adapter{Network: n, named: map[string][]string{}}
	all = a.lastOfEach(all)
	a.all = all
	for _, o := range all {
		if err := a.outdated(o); err != nil {
			return Resources{}, err
		}
		a.named[o.GetKind()] = append(a.named[o.GetKind()], o.GetName())
		if aliases, _, _ := unstructured.NestedSlice(o.Object, "spec", "communities"); o.GetKind() == "Community" {
			for _, alias := range aliases {
				alias, _ := alias.(map[string]any)
				a.named["alias"] = append(a.named["alias"], fmt.Sprint(alias["name"]))
			}
		}
	}
	for _, o := range all {
		if text, _, _ := unstructured.NestedString(o.Object, "spec", "peerAddress"); o.GetKind() == kindPeer {
			address, err := netip.ParseAddr(text)
			a.CarriesBoth = a.CarriesBoth || n.Dual && err == nil && address.Is6()
		}
		restart, _, _ := unstructured.NestedBool(o.Object, "spec", "enableGracefulRestart")
		if o.GetKind() == kindPeer && (a.first == nil || a.graceful && !restart) {
			a.first, a.graceful = o, restart
		}
	}
	for _, o := range all {
		if err := a.add(o); err != nil {
			return Resources{}, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	if err := a.Missing(); err != nil {
		return Resources{}, err
	}
	a.complete()
	if text == "" {
		a.Replaced = nil
	}
	return a.Resources, nil
}

type adapter struct {
	Resources
	Network
	// first is the user's peer for which the lab's router stands: the first without graceful restart, if there is one,
	// because its router drops the routes of a node whose speaker is replaced. graceful is set if it has graceful restart.
	first    *unstructured.Unstructured
	graceful bool
	all      []*unstructured.Unstructured // the user's
	// named are the names of the user's objects, by kind, and of the aliases of communities.
	named map[string][]string
}

func (a *adapter) lastOfEach(all []*unstructured.Unstructured) []*unstructured.Unstructured {
	key := func(o *unstructured.Unstructured) string { return o.GetKind() + " " + o.GetName() }
	last := map[string]*unstructured.Unstructured{}
	for _, o := range all {
		last[key(o)] = o
	}
	return slices.DeleteFunc(all, func(o *unstructured.Unstructured) bool {
		earlier := last[key(o)] != o
		if earlier {
			a.Say("%s: left out: a later one of the manifests has its name", key(o))
		}
		return earlier
	})
}

func (a *adapter) outdated(o *unstructured.Unstructured) error {
	const expected = "expected IPAddressPool with L2Advertisement, or with BGPPeer and BGPAdvertisement, " +
		"as MetalLB's migration to CRDs makes of it"
	_, configured, _ := unstructured.NestedString(o.Object, "data", "config")
	switch {
	case o.GetKind() == "ConfigMap" && configured:
		return fmt.Errorf("ConfigMap %s: MetalLB reads it up to 0.12 alone: %s", o.GetName(), expected)
	case o.GetKind() == "AddressPool":
		return fmt.Errorf("AddressPool %s: MetalLB has replaced this type: %s", o.GetName(), expected)
	}
	return nil
}

// add adapts an object of the user, and adds it unless a lab has no use for it.
func (a *adapter) add(o *unstructured.Unstructured) error {
	name := o.GetKind() + " " + o.GetName()
	if group := o.GroupVersionKind().Group; group != "metallb.io" {
		a.Say("%s: left out: it is not one of MetalLB's types", name)
		return nil
	}
	f, err := a.Spec(o)
	if err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	spec := f.Values
	switch o.GetKind() {
	case kindPool:
		if err := validatePool(spec, a.Networks); err != nil {
			return err
		}
		f.Drop("the lab has one Service, in the namespace default", "serviceAllocation")
	case kindPeer:
		if a.first != nil && o != a.first {
			a.Say("%s: left out: the lab has one router, which stands for %s", name, a.first.GetName())
			return nil
		}
		if err := a.peer(f); err != nil {
			return err
		}
	case kindAdvertisement:
		f.Drop("every node of the lab announces", "nodeSelectors")
		f.Drop("the lab has one router", "peers")
		f.Keep("communities", "no Community of the manifests has the alias", func(item string) bool {
			return strings.Contains(item, ":") || slices.Contains(a.named["alias"], item)
		})
		a.unknownPools(name, spec)
	case "Community":
	case kindLayer2:
		f.Drop("the lab's nodes have one interface", "interfaces")
		speakers := strings.Join(a.Speakers, " and ")
		f.Drop(speakers+" announce by ARP: the control plane keeps its link when that of the announcing node is cut", "nodeSelectors")
		spec["nodeSelectors"] = []any{map[string]any{"matchExpressions": []any{map[string]any{
			"key": "kubernetes.io/hostname", "operator": "In", "values": each.Of(a.Speakers, func(name string) any { return name }),
		}}}}
		a.unknownPools(name, spec)
	case kindBFD:
		if a.first == nil || !names(a.first, o) {
			a.Say("%s: left out: the lab's one peer does not name it", name)
		}
		return nil // it is added with the peer
	default:
		a.Say("%s: left out: the lab announces by BGP to one router", name)
		return nil
	}
	o.SetNamespace(namespace)
	a.Objects = append(a.Objects, o)
	return nil
}

func names(peer, profile *unstructured.Unstructured) bool {
	name, _, _ := unstructured.NestedString(peer.Object, "spec", "bfdProfile")
	return name == profile.GetName()
}

// bfd adds the profile of a peer, and has the router take its times.
func (a *adapter) bfd(f objects.Fields) error {
	name, there := f.Values["bfdProfile"]
	if !there {
		return nil
	}
	if !a.HasBFD {
		f.Drop("MetalLB's native BGP has no BFD, and refuses the peer", "bfdProfile")
		return nil
	}
	f.Drop("the lab's router is on the nodes' network, and BFD over several hops is another", "ebgpMultiHop")
	i := slices.IndexFunc(a.all, func(o *unstructured.Unstructured) bool { return o.GetKind() == kindBFD && names(a.first, o) })
	if i < 0 {
		a.Say("%s: bfdProfile: the manifests have no BFDProfile %v", f.Name, name)
		a.Say("%s: the manifests lack the peer's: the lab has its own", kindBFD)
		own, err := workload.Objects(fmt.Sprintf(defaults[kindBFD], name))
		if err == nil {
			a.profile(own[0], nil)
		}
		return err
	}
	profile := a.all[i]
	fields, err := a.Spec(profile)
	if err != nil {
		return fmt.Errorf("spec of BFDProfile %v: %w", name, err)
	}
	fields.Drop("the lab's router sends no echoes", "echoMode", "echoInterval")
	fields.Drop("the lab's router is one hop away", "minimumTtl")
	a.profile(profile, fields.Values)
	return nil
}

// profile adds a BFDProfile. What it leaves to FRR is FRR's default.
func (a *adapter) profile(o *unstructured.Unstructured, spec map[string]any) {
	number := func(field string, fallback int64) int64 {
		if value, ok := spec[field].(int64); ok {
			return value
		}
		return fallback
	}
	a.BFD = topology.BFD{
		Receive:    time.Duration(number("receiveInterval", 300)) * time.Millisecond,
		Transmit:   time.Duration(number("transmitInterval", 300)) * time.Millisecond,
		Multiplier: int(number("detectMultiplier", 3)),
	}
	o.SetNamespace(namespace)
	a.Objects = append(a.Objects, o)
}

func (a *adapter) peer(f objects.Fields) error {
	f.Set("peerAddress", a.Router.Address.String())
	f.Set("peerASN", int64(a.Router.ASN))
	f.Set("myASN", int64(a.Router.ClusterASN))
	f.Drop("the AS number is the lab's", "dynamicASN")
	f.Drop("the lab's router has the port 179", "peerPort")
	f.Drop("the lab's router has no password", "password", "passwordSecret")
	f.Drop("every node of the lab is a peer", "nodeSelectors")
	if a.Dual {
		f.Drop("the lab's one session carries both families", "disableMP")
	}
	f.Drop("the nodes' addresses are the lab's", "sourceAddress", "routerID", "interface", "vrf")
	return a.bfd(f)
}

func (a *adapter) unknownPools(name string, spec map[string]any) {
	names, _, _ := unstructured.NestedStringSlice(spec, "ipAddressPools")
	for _, pool := range names {
		if !slices.Contains(a.named[kindPool], pool) {
			a.Say("%s: ipAddressPools: the manifests have no IPAddressPool %s", name, pool)
		}
	}
}

func (a *adapter) has(kind string) bool {
	return slices.ContainsFunc(a.Objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind })
}

// complete adds what the objects lack: the lab's Service has an address, and each pool that may give it is announced.
func (a *adapter) complete() {
	byARP := a.has(kindLayer2) && !a.has(kindPeer) && !a.has(kindAdvertisement)
	if byARP && len(a.pools(kindLayer2)) == 0 {
		a.own(kindPool, "none of those that are announced by ARP has addresses of IPv4", a.Link.First.String()+"-"+a.Link.Last.String())
		if len(a.pools(kindLayer2)) == 0 { // the advertisements name other pools
			a.own(kindLayer2, "none announces a pool of the manifests")
		}
	}
	if a.layer2(); byARP {
		return
	}
	a.BGP = true
	if !a.has(kindPeer) {
		a.own(kindPeer, "there is none")
		a.CarriesBoth = a.Dual
	} else if a.CarriesBoth {
		a.Say("BGPPeer %s: dualStackAddressFamily is true where a version of MetalLB has it: "+
			"the lab's one session is in place of one of each family", a.first.GetName())
	}
	if !a.has(kindPool) {
		a.own(kindPool, "there is none", a.addresses())
	}
	announced := a.pools(kindAdvertisement)
	if len(announced) == 0 {
		if len(a.poolsBut(a.Layer2)) == 0 {
			a.own(kindPool, "none has addresses of IPv4 for BGP", a.addresses())
		}
		a.own(kindAdvertisement, "none announces a pool of the manifests")
		if announced = a.poolsBut(a.Layer2); a.Layer2 != "" {
			names := each.Of(announced, func(o *unstructured.Unstructured) any { return o.GetName() })
			chart.Set(a.Objects[len(a.Objects)-1].Object, "spec.ipAddressPools", names)
		}
	}
	a.BothFamilies = slices.ContainsFunc(announced, func(o *unstructured.Unstructured) bool { return has(o, objects.IPv6) })
	if a.Dual && !a.BothFamilies {
		a.widen(announced[0], topology.IPv6.Prefix(a.Pool).String(), "the lab's Service has both families")
	}
	for _, o := range a.poolsBut("") {
		on, set, _ := unstructured.NestedBool(o.Object, "spec", "autoAssign")
		if (on || !set) && !slices.Contains(announced, o) {
			a.Say("IPAddressPool %s: autoAssign is replaced by false: no BGPAdvertisement announces it, "+
				"and the lab's Service needs an address that one does", o.GetName())
			chart.Set(o.Object, "spec.autoAssign", false)
		}
	}
	a.assign(announced)
}

func (a *adapter) poolsBut(name string) []*unstructured.Unstructured {
	return slices.DeleteFunc(a.Of(kindPool), func(o *unstructured.Unstructured) bool { return !has(o, objects.IPv4) || o.GetName() == name })
}

// pools are the pools with addresses of IPv4 that an advertisement of a kind announces.
func (a *adapter) pools(by string) []*unstructured.Unstructured {
	return slices.DeleteFunc(a.poolsBut(""), func(o *unstructured.Unstructured) bool { return !a.announces(by, o) })
}

// needed is how many addresses the lab takes from a pool that is announced by ARP: for two Services, and a new one.
const needed = 3

// layer2 chooses the pool whose addresses are announced by ARP alone, and makes it large enough.
func (a *adapter) layer2() {
	pools := a.pools(kindLayer2)
	byBGP := a.pools(kindAdvertisement)
	i := slices.IndexFunc(pools, func(o *unstructured.Unstructured) bool { return !slices.Contains(byBGP, o) })
	if i < 0 {
		if len(pools) > 0 {
			a.Say("L2Advertisement: what answers by ARP is not exercised: each pool is announced by BGP as well, whose route a router prefers")
		}
		return
	}
	a.Layer2 = pools[i].GetName()
	addresses, _, _ := unstructured.NestedStringSlice(pools[i].Object, "spec", "addresses")
	room := 0
	for _, text := range addresses {
		if r, err := snapshot.ParseAddressRange(text); err == nil && r.First.Is4() {
			a.Ranges = append(a.Ranges, r)
			for address := r.First; room < needed && r.Contains(address); address = address.Next() {
				room++
			}
		}
	}
	if room < needed {
		a.Ranges = append(a.Ranges, a.Link)
		a.widen(pools[i], a.Link.First.String()+"-"+a.Link.Last.String(), fmt.Sprintf("the lab has %d Services", needed))
	}
}

func (a *adapter) widen(pool *unstructured.Unstructured, more, why string) {
	a.Say("IPAddressPool %s: addresses: %s are added: %s", pool.GetName(), more, why)
	addresses, _, _ := unstructured.NestedSlice(pool.Object, "spec", "addresses")
	chart.Set(pool.Object, "spec.addresses", append(addresses, more))
}

// addresses is the lab's own pool, as the text of the default has it.
func (n Network) addresses() string {
	if n.Dual {
		return fmt.Sprintf("%s', '%s", n.Pool, topology.IPv6.Prefix(n.Pool))
	}
	return n.Pool.String()
}

// assign has the lab's Service, which names no pool, get an address from one of these pools.
func (a *adapter) assign(pools []*unstructured.Unstructured) {
	if len(pools) == 0 || slices.ContainsFunc(pools, func(o *unstructured.Unstructured) bool {
		on, set, _ := unstructured.NestedBool(o.Object, "spec", "autoAssign")
		return on || !set
	}) {
		return
	}
	a.Say("IPAddressPool %s: autoAssign: false is replaced by true: the lab's Service names no pool", pools[0].GetName())
	chart.Set(pools[0].Object, "spec.autoAssign", true)
}

func (a *adapter) own(kind, why string, pool ...any) {
	text := defaults[kind]
	if len(pool) > 0 {
		text = fmt.Sprintf(text, pool...)
	}
	replaced, networks := a.Replaced, a.Networks
	a.Networks = nil // the pool is the lab's
	own, err := workload.Objects(text)
	if err == nil {
		err = a.add(own[0])
	}
	if err != nil {
		panic(err) // no text of a user is in it
	}
	a.Replaced, a.Networks = replaced, networks
	a.Say("%s: %s: the lab has its own", kind, why)
}

func (a *adapter) announces(by string, pool *unstructured.Unstructured) bool {
	return slices.ContainsFunc(a.Objects, func(o *unstructured.Unstructured) bool {
		if o.GetKind() != by {
			return false
		}
		names, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "ipAddressPools")
		selectors, _, _ := unstructured.NestedSlice(o.Object, "spec", "ipAddressPoolSelectors")
		return len(names)+len(selectors) == 0 || slices.Contains(names, pool.GetName()) || slices.ContainsFunc(selectors, func(s any) bool {
			return objects.Selects(objects.Selector(s), pool.GetLabels())
		})
	})
}

func has(pool *unstructured.Unstructured, matches func(text string) bool) bool {
	addresses, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "addresses")
	return slices.ContainsFunc(addresses, matches)
}

func validatePool(spec map[string]any, networks []netip.Prefix) error {
	addresses, _, err := unstructured.NestedStringSlice(spec, "addresses")
	if err != nil || len(addresses) == 0 {
		return fmt.Errorf("spec.addresses: expected a list of ranges such as 192.0.2.0/24 or 192.0.2.1-192.0.2.9, got %v", spec["addresses"])
	}
	for _, a := range addresses {
		if err := objects.Overlap(a, networks); err != nil {
			return fmt.Errorf("spec.addresses: %w", err)
		}
	}
	return nil
}
