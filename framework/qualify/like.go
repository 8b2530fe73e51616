package qualify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/audit/bundle"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	ciliumrelease "github.com/relapse-dev/relapse/framework/component/cilium/release"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/framework/upgrade"
)

// Likeness is what a bundle says of a component, as the files of a qualification have it.
type Likeness struct {
	// From is the version that its pods run.
	From string
	// Values, Config and Manifests are what --values, --config and --manifests take; each may be empty.
	Values, Config, Manifests string
	// Mode is that of MetalLB; empty: the bundle has values, or does not say.
	Mode string
	// Told are sentences about what the bundle has, and the lab will not.
	Told []string
}

// programs are the ends of the names of the images whose versions are those of components.
var programs = map[string]string{
	"cilium": "cilium/cilium", "metallb": "metallb/speaker", "kube-proxy": "kube-proxy", "coredns": "coredns",
	"calico": "calico/node", "kube-router": "kube-router",
}

// ownTypes are a component's own types of which its lab takes objects.
var ownTypes = map[string][]schema.GroupVersionResource{
	"cilium": versionsOf("cilium.io", []string{"v2alpha1", "v2"}, "ciliumbgpclusterconfigs", "ciliumbgppeerconfigs", "ciliumbgpadvertisements",
		"ciliumloadbalancerippools", "ciliuml2announcementpolicies"),
	"metallb": versionsOf("metallb.io", []string{"v1beta1", "v1beta2"}, "ipaddresspools", "addresspools", "bgppeers", "bgpadvertisements",
		"l2advertisements", "communities", "bfdprofiles"),
}

func versionsOf(group string, versions []string, resources ...string) (all []schema.GroupVersionResource) {
	for _, version := range versions {
		for _, r := range resources {
			all = append(all, schema.GroupVersionResource{Group: group, Version: version, Resource: r})
		}
	}
	return all
}

var (
	nodesOf     = corev1.SchemeGroupVersion.WithResource("nodes")
	configMaps  = corev1.SchemeGroupVersion.WithResource("configmaps")
	daemonSets  = appsv1.SchemeGroupVersion.WithResource("daemonsets")
	deployments = appsv1.SchemeGroupVersion.WithResource("deployments")
)

// LikenessOf reads of a bundle what says how a component runs there. The error is one sentence about what
// the bundle lacks.
func LikenessOf(ctx context.Context, component, file string) (Likeness, error) {
	var l Likeness
	b, err := bundle.Open(file, append([]schema.GroupVersionResource{nodesOf, configMaps, daemonSets, deployments}, ownTypes[component]...))
	if err != nil {
		return l, err
	}
	bgp := ""
	if l.From, bgp = running(b, component); l.From == "" {
		return l, fmt.Errorf("the bundle has no DaemonSet and no Deployment with an image of %s and its version", component)
	}
	if nodes, _ := b.Objects(nodesOf); len(nodes) > 0 {
		l.Told = append(l.Told, fmt.Sprintf("of the bundle's %d nodes the lab has a few, which bear no label of the bundle's", len(nodes)))
	}
	if err := l.manifests(b, component); err != nil {
		return l, err
	}
	switch name, values := b.HelmValues(); {
	case component == "metallb":
		l.Mode = bgp
	case component == "cilium" && bisect.Compare(l.From, ciliumrelease.First) < 0:
		l.Config, err = configMap(b, func(o corev1.ConfigMap) bool { return o.Namespace+"/"+o.Name == cilium.ConfigMap })
	case component == "cilium" && values != nil:
		l.Values, l.Told = string(values), append(l.Told, "values: "+name)
	case component == "cilium":
		err = l.fromConfigMap(ctx, b)
	case upgrade.ConfigKey(component) != "":
		l.Config, err = configMap(b, func(o corev1.ConfigMap) bool {
			return o.Namespace == "kube-system" && o.Data[upgrade.ConfigKey(component)] != ""
		})
	}
	return l, err
}

// InBundle are the versions of components that pods of a bundle run, and whether its nodes have addresses for pods of two
// families.
func InBundle(file string, components ...string) (versions map[string]string, dual bool, err error) {
	b, err := bundle.Open(file, []schema.GroupVersionResource{nodesOf, daemonSets, deployments})
	if err != nil {
		return nil, false, err
	}
	versions = map[string]string{}
	for _, component := range components {
		if version, _ := running(b, component); version != "" {
			versions[component] = version
		}
	}
	nodes, _ := b.Objects(nodesOf)
	for _, text := range nodes {
		var n corev1.Node
		if err := json.Unmarshal(text, &n); err != nil {
			return nil, false, err
		}
		dual = dual || len(n.Spec.PodCIDRs) > 1
	}
	return versions, dual, nil
}

// running is the version of a component that pods of the bundle run, and MetalLB's mode.
func running(b *bundle.Bundle, component string) (version, bgp string) {
	sets, _ := b.Objects(daemonSets)
	others, _ := b.Objects(deployments)
	end := programs[component]
	for _, text := range append(sets, others...) {
		var o appsv1.DaemonSet // a Deployment has its template at the same place
		if json.Unmarshal(text, &o) != nil {
			continue
		}
		for _, c := range o.Spec.Template.Spec.Containers {
			ref, err := snapshot.ParseReference(c.Image)
			tag, _, _ := strings.Cut(strings.TrimPrefix(ref.Tag, "v"), "-")
			// Rancher's images have the vendor's name with hyphens.
			is := strings.HasSuffix("/"+ref.Name, "/"+end) || strings.HasSuffix(ref.Name, "-"+strings.ReplaceAll(end, "/", "-"))
			if err != nil || !is || semver.Canonical("v"+tag) != "v"+tag {
				continue
			}
			version, bgp = tag, metallb.Native
			for _, v := range c.Env {
				if v.Name == "METALLB_BGP_TYPE" {
					bgp = cmp.Or(v.Value, bgp)
				}
			}
		}
	}
	return version, bgp
}

// manifests takes the objects of the component's own types, without what an API server has added.
func (l *Likeness) manifests(b *bundle.Bundle, component string) error {
	latest := map[string]string{} // by kind, namespace and name: several versions of a type have the same objects
	for _, r := range ownTypes[component] {
		objects, lacks := b.Objects(r)
		if len(objects) > 0 && lacks != "" {
			l.Told = append(l.Told, fmt.Sprintf("some %s may be missing: %s", r.Resource, lacks))
		}
		for _, text := range objects {
			var o unstructured.Unstructured
			if err := o.UnmarshalJSON(text); err != nil {
				return err
			}
			delete(o.Object, "status")
			name, namespace, labels := o.GetName(), o.GetNamespace(), o.GetLabels()
			delete(o.Object, "metadata")
			o.SetName(name)
			o.SetNamespace(namespace)
			o.SetLabels(labels)
			document, err := yaml.Marshal(o.Object)
			if err != nil {
				return err
			}
			latest[o.GetKind()+" "+namespace+"/"+name] = string(document)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(latest)) {
		l.Manifests += "---\n" + latest[name]
	}
	return nil
}

// configMap is the first ConfigMap of a bundle that is as asked for; empty if none is.
func configMap(b *bundle.Bundle, is func(corev1.ConfigMap) bool) (string, error) {
	all, _ := b.Objects(configMaps)
	for _, text := range all {
		var o corev1.ConfigMap
		if json.Unmarshal(text, &o) == nil && is(o) {
			return string(text), nil
		}
	}
	return "", nil
}

// valueOf are the values of Cilium's chart that the lab and the paths of its traffic depend on, by the key of cilium-config
// that the chart writes of each. Source: install/kubernetes/cilium/templates/cilium-configmap.yaml of 1.16 to 1.19.
var valueOf = map[string]string{
	"routing-mode": "routingMode", "tunnel-protocol": "tunnelProtocol", "ipam": "ipam.mode",
	"auto-direct-node-routes": "autoDirectNodeRoutes", "enable-endpoint-routes": "endpointRoutes.enabled",
	"ipv4-native-routing-cidr": "ipv4NativeRoutingCIDR", "ipv6-native-routing-cidr": "ipv6NativeRoutingCIDR",
	"enable-ipv4": "ipv4.enabled", "enable-ipv6": "ipv6.enabled", "enable-bpf-masquerade": "bpf.masquerade",
	"enable-ipv4-masquerade": "enableIPv4Masquerade", "enable-ipv6-masquerade": "enableIPv6Masquerade",
	"kube-proxy-replacement": "kubeProxyReplacement", "bpf-lb-mode": "loadBalancer.mode", "bpf-lb-algorithm": "loadBalancer.algorithm",
	"bpf-lb-sock-hostns-only": "socketLB.hostNamespaceOnly", "bpf-lb-external-clusterip": "bpf.lbExternalClusterIP",
	"enable-health-check-loadbalancer-ip": "nodePort.enableHealthCheckLoadBalancerIP",
	"enable-bgp-control-plane":            "bgpControlPlane.enabled", "enable-l2-announcements": "l2announcements.enabled",
	"enable-wireguard": "encryption.enabled", "default-lb-service-ipam": "defaultLBServiceIPAM",
}

// fromConfigMap takes for values what cilium-config says of them, and names the keys with which a release with these values
// has something else than the bundle.
func (l *Likeness) fromConfigMap(ctx context.Context, b *bundle.Bundle) error {
	name := path.Base(cilium.ConfigMap)
	text, err := configMap(b, func(o corev1.ConfigMap) bool { return o.Namespace+"/"+o.Name == cilium.ConfigMap })
	if err != nil || text == "" {
		return cmp.Or(err, fmt.Errorf("the bundle has neither a file cilium-helm-values-*.yaml nor the ConfigMap %s", cilium.ConfigMap))
	}
	var has corev1.ConfigMap
	if err := json.Unmarshal([]byte(text), &has); err != nil {
		return err
	}
	values := map[string]any{}
	for key, at := range valueOf {
		if value, there := has.Data[key]; there {
			var typed any = value
			if value == "true" || value == "false" {
				typed = value == "true"
			}
			unstructured.SetNestedField(values, typed, strings.Split(at, ".")...)
		}
	}
	if has.Data["enable-wireguard"] == "true" {
		unstructured.SetNestedField(values, "wireguard", "encryption", "type")
	}
	c, err := chart.Of(ctx, "cilium", l.From)
	if err != nil {
		return err
	}
	rendered, err := c.Render(chart.Release{Name: "cilium", Namespace: has.Namespace, Values: values, KubeVersion: kubeadm.KubernetesVersion})
	if err != nil {
		return err
	}
	var others []string
	if own := chart.Find(rendered.Objects, "ConfigMap", name); own != nil {
		data, _, _ := unstructured.NestedStringMap(own.Object, "data")
		for _, key := range slices.Sorted(maps.Keys(has.Data)) {
			if data[key] != has.Data[key] {
				others = append(others, key)
			}
		}
	}
	l.Told = append(l.Told, "the bundle has no Helm values: they are taken from the ConfigMap "+cilium.ConfigMap)
	if len(others) > 0 {
		l.Told = append(l.Told, "keys of it that the lab does not have as the bundle does: "+strings.Join(others, ", "))
	}
	document, err := yaml.Marshal(values)
	l.Values = string(document)
	return err
}
