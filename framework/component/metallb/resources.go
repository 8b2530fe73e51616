package metallb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Resources are MetalLB's pools, peers and advertisements, as a lab gets them.
type Resources struct {
	Objects []*unstructured.Unstructured
	// Replaced are what the lab has in place of the user's objects and fields, a clause each.
	Replaced []string
}

// Router is the lab's router for a BGP peer, with the AS number of the nodes.
type Router struct {
	Address    netip.Addr
	ASN        uint32
	ClusterASN uint32
}

// defaults are the lab's own, by their kind: a pool, the router, and an advertisement of every
// address.
var defaults = map[string]string{
	kindPool:          "{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: lab}, spec: {addresses: ['%s']}}",
	kindPeer:          "{apiVersion: metallb.io/v1beta2, kind: BGPPeer, metadata: {name: lab}, spec: {}}",
	kindAdvertisement: "{apiVersion: metallb.io/v1beta1, kind: BGPAdvertisement, metadata: {name: lab}, spec: {}}",
}

const (
	kindPool          = "IPAddressPool"
	kindPeer          = "BGPPeer"
	kindAdvertisement = "BGPAdvertisement"
)

// DefaultResources are the resources of a user who gives none.
func DefaultResources(pool netip.Prefix, router Router) (Resources, error) {
	r, err := NewResources("", pool, router, nil)
	r.Replaced = nil
	return r, err
}

// NewResources adapts the user's objects to a lab: addresses of a pool are announced by BGP to the
// lab's router, from all nodes. What they lack is the lab's, with the addresses of a pool of its
// own. Objects of other types are left out. The user's pools must not overlap the lab's own
// networks.
func NewResources(text string, pool netip.Prefix, router Router, networks []netip.Prefix) (Resources, error) {
	all, err := workload.Objects(text)
	if err != nil {
		return Resources{}, err
	}
	others := func(o *unstructured.Unstructured) bool {
		return o.GroupVersionKind().Group != "metallb.io" && o.GetKind() != "ConfigMap"
	}
	if len(all) > 0 && !slices.ContainsFunc(all, func(o *unstructured.Unstructured) bool { return !others(o) }) {
		return Resources{}, fmt.Errorf("none of its %d objects is of MetalLB's types: expected IPAddressPool, BGPPeer or BGPAdvertisement", len(all))
	}
	a := &adapter{router: router, networks: networks, named: map[string][]string{}}
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
		if err := a.add(o); err != nil {
			return Resources{}, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	if err := placeholder.Missing(a.variables); err != nil {
		return Resources{}, err
	}
	return a.Resources, a.complete(pool)
}

// adapter collects resources.
type adapter struct {
	Resources
	router   Router
	networks []netip.Prefix
	// named are the names of the user's objects, by kind, and of the aliases of communities.
	named     map[string][]string
	variables []placeholder.Variable
}

func (a *adapter) replaced(format string, args ...any) {
	a.Replaced = append(a.Replaced, fmt.Sprintf(format, args...))
}

// outdated refuses what MetalLB was configured by once.
func (a *adapter) outdated(o *unstructured.Unstructured) error {
	const expected = "expected IPAddressPool, BGPPeer and BGPAdvertisement, as MetalLB's migration to CRDs makes of it"
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
		a.replaced("%s: left out: it is not one of MetalLB's types", name)
		return nil
	}
	spec, _, err := unstructured.NestedMap(o.Object, "spec")
	if err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	if spec == nil {
		spec = map[string]any{}
	}
	f := fields{a, name, spec}
	switch o.GetKind() {
	case kindPool:
		if err := validatePool(spec, a.networks); err != nil {
			return err
		}
		f.drop("the lab has one Service, in the namespace default", "serviceAllocation")
	case kindPeer:
		if a.has(kindPeer) {
			a.replaced("%s: left out: the lab has one router, which stands for the first peer", name)
			return nil
		}
		a.peer(f)
	case kindAdvertisement:
		f.drop("every node of the lab announces", "nodeSelectors")
		f.drop("the lab has one router", "peers")
		f.keep("communities", "no Community of the manifests has the alias", func(item string) bool {
			return strings.Contains(item, ":") || slices.Contains(a.named["alias"], item)
		})
		a.unknownPools(name, spec)
	case "Community":
	case "L2Advertisement":
		a.replaced("%s: left out: layer 2 is not exercised, the lab announces by BGP to one router", name)
		return nil
	default:
		a.replaced("%s: left out: the lab announces by BGP to one router, without BFD", name)
		return nil
	}
	o.SetNamespace(namespace)
	o.Object["spec"] = spec
	a.variables = append(a.variables, placeholder.In(o.Object)...)
	a.Objects = append(a.Objects, o)
	return nil
}

// peer gives a peer the lab's router.
func (a *adapter) peer(f fields) {
	f.set("peerAddress", a.router.Address.String())
	f.set("peerASN", int64(a.router.ASN))
	f.set("myASN", int64(a.router.ClusterASN))
	f.drop("the AS number is the lab's", "dynamicASN")
	f.drop("the lab's router has the port 179", "peerPort")
	f.drop("the lab's router has no password", "password", "passwordSecret")
	f.drop("the lab's router has no BFD", "bfdProfile")
	f.drop("every node of the lab is a peer", "nodeSelectors")
	f.drop("the nodes' addresses are the lab's", "sourceAddress", "routerID", "interface", "vrf")
}

// unknownPools tells which pools an advertisement names that are not there.
func (a *adapter) unknownPools(name string, spec map[string]any) {
	names, _, _ := unstructured.NestedStringSlice(spec, "ipAddressPools")
	for _, pool := range names {
		if !slices.Contains(a.named[kindPool], pool) {
			a.replaced("%s: ipAddressPools: the manifests have no IPAddressPool %s", name, pool)
		}
	}
}

func (a *adapter) has(kind string) bool {
	return slices.ContainsFunc(a.Objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind })
}

// complete adds what the objects lack, so that the lab's Service has an address, and it is
// announced: each pool from which it may come is announced.
func (a *adapter) complete(pool netip.Prefix) error {
	if !a.has(kindPeer) {
		if err := a.own(kindPeer, "there is none"); err != nil {
			return err
		}
	}
	if !a.has(kindPool) {
		if err := a.own(kindPool, "there is none", pool); err != nil {
			return err
		}
	}
	var announced []*unstructured.Unstructured
	for _, o := range a.Objects {
		if o.GetKind() == kindPool && hasIPv4(o) && a.announces(o) {
			announced = append(announced, o)
		}
	}
	if len(announced) == 0 {
		if !slices.ContainsFunc(a.Objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kindPool && hasIPv4(o) }) {
			if err := a.own(kindPool, "none has addresses of IPv4", pool); err != nil {
				return err
			}
		}
		return errors.Join(a.own(kindAdvertisement, "none announces a pool of the manifests"), a.assign(a.Objects...))
	}
	for _, o := range a.Objects {
		on, set, _ := unstructured.NestedBool(o.Object, "spec", "autoAssign")
		if o.GetKind() == kindPool && (on || !set) && !slices.Contains(announced, o) {
			a.replaced("IPAddressPool %s: autoAssign is replaced by false: no BGPAdvertisement announces it, and the lab's Service needs an address that one does", o.GetName())
			if err := unstructured.SetNestedField(o.Object, false, "spec", "autoAssign"); err != nil {
				return err
			}
		}
	}
	return a.assign(announced...)
}

// assign has the lab's Service, which names no pool, get an address from one of these.
func (a *adapter) assign(objects ...*unstructured.Unstructured) error {
	pools := slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return o.GetKind() != kindPool || !hasIPv4(o) })
	if len(pools) == 0 || slices.ContainsFunc(pools, func(o *unstructured.Unstructured) bool {
		on, set, _ := unstructured.NestedBool(o.Object, "spec", "autoAssign")
		return on || !set
	}) {
		return nil
	}
	a.replaced("IPAddressPool %s: autoAssign: false is replaced by true: the lab's Service names no pool", pools[0].GetName())
	return unstructured.SetNestedField(pools[0].Object, true, "spec", "autoAssign")
}

// own adds the lab's own object of a kind.
func (a *adapter) own(kind, why string, pool ...any) error {
	text := defaults[kind]
	if len(pool) > 0 {
		text = fmt.Sprintf(text, pool...)
	}
	objects, err := workload.Objects(text)
	if err != nil {
		return err
	}
	a.replaced("%s: %s: the lab has its own", kind, why)
	told := a.Replaced
	err = a.add(objects[0])
	a.Replaced = told // it is the lab's
	return err
}

// announces reports whether an advertisement announces a pool.
func (a *adapter) announces(pool *unstructured.Unstructured) bool {
	return slices.ContainsFunc(a.Objects, func(o *unstructured.Unstructured) bool {
		if o.GetKind() != kindAdvertisement {
			return false
		}
		names, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "ipAddressPools")
		selectors, _, _ := unstructured.NestedSlice(o.Object, "spec", "ipAddressPoolSelectors")
		return len(names)+len(selectors) == 0 || slices.Contains(names, pool.GetName()) || slices.ContainsFunc(selectors, func(s any) bool {
			var selector metav1.LabelSelector
			fields, _ := s.(map[string]any)
			if runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &selector) != nil {
				return false
			}
			is, err := metav1.LabelSelectorAsSelector(&selector)
			return err == nil && is.Matches(labels.Set(pool.GetLabels()))
		})
	})
}

func hasIPv4(pool *unstructured.Unstructured) bool {
	addresses, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "addresses")
	return slices.ContainsFunc(addresses, func(a string) bool {
		r, err := snapshot.ParseAddressRange(a)
		return err == nil && r.First.Is4()
	})
}

// fields are those of an object's spec, which a lab may have otherwise.
type fields struct {
	*adapter
	name string
	spec map[string]any
}

// drop removes fields.
func (f fields) drop(why string, names ...string) {
	for _, field := range names {
		if value, there := f.spec[field]; there {
			what := fmt.Sprintf("%s: %v", field, value)
			if field == "password" { // a secret, which is neither printed nor stored
				what = field
			}
			f.replaced("%s: %s is removed: %s", f.name, what, why)
			delete(f.spec, field)
		}
	}
}

func (f fields) set(field string, value any) {
	if was, there := f.spec[field]; there && fmt.Sprint(was) != fmt.Sprint(value) {
		f.replaced("%s: %s: %v is replaced by %v, the lab's", f.name, field, was, value)
	}
	f.spec[field] = value
}

// keep removes some texts of a list.
func (f fields) keep(field, why string, keep func(string) bool) {
	items, _ := f.spec[field].([]any)
	var kept []any
	for _, item := range items {
		if keep(fmt.Sprint(item)) {
			kept = append(kept, item)
			continue
		}
		f.replaced("%s: %s: %v is removed: %s", f.name, field, item, why)
	}
	if len(items) > 0 {
		f.spec[field] = kept
	}
}

// validatePool refuses a pool that the lab cannot announce.
func validatePool(spec map[string]any, networks []netip.Prefix) error {
	addresses, _, err := unstructured.NestedStringSlice(spec, "addresses")
	if err != nil || len(addresses) == 0 {
		return fmt.Errorf("spec.addresses: expected a list of ranges such as 192.0.2.0/24 or 192.0.2.1-192.0.2.9, got %v", spec["addresses"])
	}
	for _, a := range addresses {
		if len(placeholder.In(a)) > 0 {
			continue // it has no value
		}
		r, err := snapshot.ParseAddressRange(a)
		if err != nil {
			return fmt.Errorf("spec.addresses: %q: expected a range such as 192.0.2.0/24 or 192.0.2.1-192.0.2.9", a)
		}
		i := slices.IndexFunc(networks, func(n netip.Prefix) bool {
			return n.Contains(r.First) || n.Contains(r.Last) || r.Contains(n.Addr())
		})
		if i >= 0 {
			return fmt.Errorf("spec.addresses: %s overlaps %s, a network of the lab: expected --subnets with a prefix that the pools leave free", a, networks[i])
		}
	}
	return nil
}
