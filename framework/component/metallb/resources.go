package metallb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Resources are MetalLB's pools, peers and advertisements, as a lab gets them.
type Resources struct {
	Objects []*unstructured.Unstructured
	// Replaced are what the lab has in place of the user's objects and fields, a clause
	// each.
	Replaced []string
}

// Router is the lab's router for a BGP peer, with the AS number of the nodes.
type Router struct {
	Address    netip.Addr
	ASN        uint32
	ClusterASN uint32
}

// defaults are the resources of users who give none: a pool, the router, and an
// advertisement of every address.
const defaults = `apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lab, namespace: metallb-system}
spec: {addresses: ["%s"]}
---
apiVersion: metallb.io/v1beta2
kind: BGPPeer
metadata: {name: tor, namespace: metallb-system}
spec: {}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: lab, namespace: metallb-system}
spec: {}
`

// DefaultResources are the resources of a user who gives none.
func DefaultResources(pool netip.Prefix, router Router) (Resources, error) {
	r, err := NewResources(fmt.Sprintf(defaults, pool), router, nil)
	r.Replaced = nil
	return r, err
}

// NewResources adapts the user's objects to a lab: every address is announced by BGP to the
// lab's router, from all nodes. Objects of other types are left out. The user's pools must
// not overlap the lab's own networks.
func NewResources(text string, router Router, networks []netip.Prefix) (Resources, error) {
	all, err := workload.Objects(text)
	if err != nil {
		return Resources{}, err
	}
	var r Resources
	replaced := func(format string, args ...any) { r.Replaced = append(r.Replaced, fmt.Sprintf(format, args...)) }
	count := map[string]int{}
	for _, o := range all {
		name := o.GetKind() + " " + o.GetName()
		if group := o.GroupVersionKind().Group; group != "metallb.io" {
			replaced("%s: left out: it is not one of MetalLB's types", name)
			continue
		}
		spec, _, err := unstructured.NestedMap(o.Object, "spec")
		if err != nil {
			return Resources{}, fmt.Errorf("%s: spec: %w", name, err)
		}
		if spec == nil {
			spec = map[string]any{}
		}
		// drop removes fields.
		drop := func(why string, fields ...string) {
			for _, field := range fields {
				if value, there := spec[field]; there {
					replaced("%s: %s: %v is removed: %s", name, field, value, why)
					delete(spec, field)
				}
			}
		}
		set := func(field string, value any) {
			if was, there := spec[field]; there && fmt.Sprint(was) != fmt.Sprint(value) {
				replaced("%s: %s: %v is replaced by %v, the lab's", name, field, was, value)
			}
			spec[field] = value
		}
		switch o.GetKind() {
		case "IPAddressPool":
			if err := validatePool(spec, networks); err != nil {
				return Resources{}, fmt.Errorf("%s: %w", name, err)
			}
			drop("the lab has one Service, in the namespace default", "serviceAllocation")
		case "BGPPeer":
			if count[o.GetKind()] > 0 {
				replaced("%s: left out: the lab has one router, which stands for the first peer", name)
				continue
			}
			set("peerAddress", router.Address.String())
			set("peerASN", int64(router.ASN))
			set("myASN", int64(router.ClusterASN))
			drop("the lab's router has the port 179", "peerPort")
			drop("the lab's router has no password", "password", "passwordSecret")
			drop("the lab's router has no BFD", "bfdProfile")
			drop("every node of the lab is a peer", "nodeSelectors")
			drop("the nodes' addresses are the lab's", "sourceAddress", "routerID", "interface", "vrf")
		case "BGPAdvertisement":
			drop("every node of the lab announces", "nodeSelectors")
			drop("the lab has one router", "peers")
		case "Community":
		default:
			replaced("%s: left out: the lab announces by BGP to one router", name)
			continue
		}
		count[o.GetKind()]++
		o.SetNamespace(namespace)
		o.Object["spec"] = spec
		r.Objects = append(r.Objects, o)
	}
	var missing []string
	for _, kind := range []string{"IPAddressPool", "BGPPeer", "BGPAdvertisement"} {
		if count[kind] == 0 {
			missing = append(missing, kind)
		}
	}
	if len(missing) > 0 {
		return Resources{}, errors.New("there is no " + strings.Join(missing, " and no ") + ": expected one at least of each")
	}
	return r, nil
}

// validatePool refuses a pool that the lab cannot announce.
func validatePool(spec map[string]any, networks []netip.Prefix) error {
	addresses, _, err := unstructured.NestedStringSlice(spec, "addresses")
	if err != nil || len(addresses) == 0 {
		return fmt.Errorf("spec.addresses: expected a list of ranges such as 192.0.2.0/24 or 192.0.2.1-192.0.2.9, got %v", spec["addresses"])
	}
	for _, a := range addresses {
		r, err := snapshot.ParseAddressRange(a)
		if err != nil {
			return fmt.Errorf("spec.addresses: %q: expected a range such as 192.0.2.0/24 or 192.0.2.1-192.0.2.9", a)
		}
		i := slices.IndexFunc(networks, func(n netip.Prefix) bool {
			return n.Contains(r.First) || n.Contains(r.Last) || r.Contains(n.Addr())
		})
		if i >= 0 {
			return fmt.Errorf("spec.addresses: %s overlaps %s, a network of the lab", a, networks[i])
		}
	}
	return nil
}
