package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// CiliumBGP is the Speaker of what Cilium's BGP control plane announces.
const CiliumBGP = "cilium"

// What is read of Cilium's types of these names (github.com/cilium/cilium/pkg/k8s/apis/cilium.io,
// v2 from 1.18 on, v2alpha1 of 1.16 and 1.17).
type (
	ciliumBGPEntry struct {
		Type     string                `json:"advertisementType"`
		Selector *metav1.LabelSelector `json:"selector"`
		Service  *struct {
			Addresses   []string `json:"addresses"`
			Aggregation int      `json:"aggregationLengthIPv4"`
		} `json:"service"`
	}
	ciliumBGPClusterConfig struct {
		Spec struct {
			NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
			BGPInstances []struct {
				Peers []struct {
					PeerConfigRef *struct {
						Name string `json:"name"`
					} `json:"peerConfigRef"`
				} `json:"peers"`
			} `json:"bgpInstances"`
		} `json:"spec"`
	}
	ciliumBGPPeerConfig struct {
		Spec struct {
			Families []struct {
				AFI            string                `json:"afi"`
				Advertisements *metav1.LabelSelector `json:"advertisements"`
			} `json:"families"`
		} `json:"spec"`
	}
	ciliumBGPAdvertisement struct {
		Spec struct {
			Advertisements []ciliumBGPEntry `json:"advertisements"`
		} `json:"spec"`
	}
)

// ciliumBGPClass is the loadBalancerClass that Cilium's BGP control plane serves, besides none.
const ciliumBGPClass = "io.cilium/bgp-control-plane"

// ciliumAdvertisements are the LoadBalancer addresses that Cilium's nodes are to announce: one
// item for each CiliumBGPClusterConfig and each entry of type Service of a CiliumBGPAdvertisement
// that its peers select. Its ranges are the addresses of the Services that the entry selects, by
// the rules of the agent (pkg/bgp/manager/reconciler/service.go).
func (c *cluster) ciliumAdvertisements(ctx context.Context) ([]BGPAdvertisement, error) {
	configs, err := c.ciliumBGP(ctx, "ciliumbgpclusterconfigs")
	if err != nil || len(configs) == 0 {
		return nil, err
	}
	peerings, err := c.ciliumBGP(ctx, "ciliumbgppeerconfigs")
	if err != nil {
		return nil, err
	}
	advertisements, err := c.ciliumBGP(ctx, "ciliumbgpadvertisements")
	if err != nil {
		return nil, err
	}
	nodes, err := c.core.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	services, err := c.core.Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing Services: %w", err)
	}
	var all []BGPAdvertisement
	for _, item := range configs {
		config, err := as[ciliumBGPClusterConfig](item)
		if err != nil {
			return nil, err
		}
		var announce []string
		for _, n := range nodes.Items {
			selected, err := selects(config.Spec.NodeSelector, n.Labels)
			if err != nil {
				return nil, fmt.Errorf("%s: spec.nodeSelector: %w", describe(item), err)
			}
			if selected || config.Spec.NodeSelector == nil { // without a selector it is of all nodes
				announce = append(announce, n.Name)
			}
		}
		slices.Sort(announce)
		peers := map[string]bool{}
		for _, instance := range config.Spec.BGPInstances {
			for _, p := range instance.Peers {
				if p.PeerConfigRef != nil {
					peers[p.PeerConfigRef.Name] = true
				}
			}
		}
		for _, advertisement := range advertisements {
			selected, err := advertised(advertisement, peerings, peers)
			if err != nil {
				return nil, err
			}
			if !selected {
				continue
			}
			of, err := as[ciliumBGPAdvertisement](advertisement)
			if err != nil {
				return nil, err
			}
			for _, entry := range of.Spec.Advertisements {
				shared, alone, err := entry.addresses(services.Items)
				if err != nil {
					return nil, fmt.Errorf("%s: a selector: %w", describe(advertisement), err)
				}
				b := BGPAdvertisement{Name: advertisement.GetName(), Speaker: CiliumBGP, Nodes: announce}
				if len(shared) > 0 {
					aggregated := b
					aggregated.Ranges, aggregated.AggregationLength = shared, entry.Service.Aggregation
					all = append(all, aggregated)
				}
				if len(alone) > 0 {
					b.Ranges = alone
					all = append(all, b)
				}
			}
		}
	}
	return all, nil
}

// addresses are the LoadBalancer addresses of the Services that an entry of type Service selects:
// those that it may aggregate, and those of policy Local, which never are.
func (e ciliumBGPEntry) addresses(services []corev1.Service) (shared, alone []AddressRange, err error) {
	if e.Type != "Service" || e.Service == nil || !slices.Contains(e.Service.Addresses, "LoadBalancerIP") {
		return nil, nil, nil
	}
	for _, s := range services {
		selected, err := selects(e.Selector, serviceLabels(s))
		if err != nil {
			return nil, nil, err
		}
		if !selected || s.Spec.LoadBalancerClass != nil && *s.Spec.LoadBalancerClass != ciliumBGPClass {
			continue
		}
		to := &shared
		if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			to = &alone
		}
		for _, address := range balancerIPs(s) {
			*to = append(*to, AddressRange{address, address})
		}
	}
	return shared, alone, nil
}

// advertised reports whether peers with one of these configurations are sent an advertisement
// for IPv4.
func advertised(advertisement unstructured.Unstructured, peerings []unstructured.Unstructured, peers map[string]bool) (bool, error) {
	for _, item := range peerings {
		if !peers[item.GetName()] {
			continue
		}
		peering, err := as[ciliumBGPPeerConfig](item)
		if err != nil {
			return false, err
		}
		for _, family := range peering.Spec.Families {
			selected, err := selects(family.Advertisements, advertisement.GetLabels())
			if err != nil {
				return false, fmt.Errorf("%s: spec.families: %w", describe(item), err)
			}
			if selected && family.AFI == "ipv4" {
				return true, nil
			}
		}
	}
	return false, nil
}

// ciliumBGP lists a resource of Cilium's BGP control plane, in order of name. A cluster that does
// not know it has none.
func (c *cluster) ciliumBGP(ctx context.Context, resource string) ([]unstructured.Unstructured, error) {
	for _, version := range []string{"v2", "v2alpha1"} {
		l, err := c.dynamic.Resource(schema.GroupVersionResource{Group: "cilium.io", Version: version, Resource: resource}).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", resource, err)
		}
		slices.SortFunc(l.Items, func(a, b unstructured.Unstructured) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return l.Items, nil
	}
	return nil, nil
}

func as[T any](o unstructured.Unstructured) (T, error) {
	var t T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &t); err != nil {
		return t, fmt.Errorf("%s: %w", describe(o), err)
	}
	return t, nil
}

func describe(o unstructured.Unstructured) string { return o.GetKind() + " " + o.GetName() }

// selects reports whether a selector selects labels. None selects nothing.
func selects(s *metav1.LabelSelector, of map[string]string) (bool, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(of)), err
}

// serviceLabels are the labels by which Cilium selects a Service: name and namespace are among
// them.
func serviceLabels(s corev1.Service) map[string]string {
	all := map[string]string{}
	maps.Copy(all, s.Labels)
	all["io.kubernetes.service.name"], all["io.kubernetes.service.namespace"] = s.Name, s.Namespace
	return all
}

// balancerIPs are the addresses in the status of a Service of type LoadBalancer. Some load
// balancers have a name in place of an address.
func balancerIPs(s corev1.Service) []netip.Addr {
	var all []netip.Addr
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ip, err := netip.ParseAddr(ingress.IP); err == nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			all = append(all, ip)
		}
	}
	return all
}
