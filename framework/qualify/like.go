package qualify

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/audit/bundle"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/chart/published"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/component/kubeadm"
	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Likeness is what a bundle says of a component, in the form of the files that a qualification reads.
type Likeness struct {
	// From is the version that its pods run.
	From string
	// Values, Config and Manifests are what --values, --config and --manifests take; each may be empty.
	Values, Config, Manifests string
	// NoConfig is why there is no Config although the component has one; empty otherwise.
	NoConfig string
	// Mode is MetalLB's mode.
	Mode string
	// Told are sentences about parts of the bundle that the lab will not have, and about parts that the bundle lacks.
	Told []string
}

// program is how a component's pods are known: their workload's kind, the container, and the end of its image's name.
type program struct {
	resource   schema.GroupVersionResource
	containers []string
	image      string
}

var (
	daemonSets  = appsv1.SchemeGroupVersion.WithResource("daemonsets")
	deployments = appsv1.SchemeGroupVersion.WithResource("deployments")
	configMaps  = corev1.SchemeGroupVersion.WithResource("configmaps")
	nodesOf     = corev1.SchemeGroupVersion.WithResource("nodes")
	// cluster are the resources that tell two clusters in a bundle apart, and the resources that all components need.
	cluster = []schema.GroupVersionResource{
		nodesOf, configMaps, daemonSets, deployments,
		corev1.SchemeGroupVersion.WithResource("services"), rbacv1.SchemeGroupVersion.WithResource("clusterroles"),
	}
)

var programs = map[string]program{
	"cilium":      {daemonSets, []string{"cilium-agent"}, "cilium/cilium"},
	"metallb":     {daemonSets, []string{"speaker", "metallb-speaker"}, "metallb/speaker"},
	"kube-proxy":  {daemonSets, []string{"kube-proxy"}, "kube-proxy"},
	"coredns":     {deployments, []string{"coredns"}, "coredns"},
	"calico":      {daemonSets, []string{"calico-node"}, "calico/node"},
	"kube-router": {daemonSets, []string{"kube-router"}, "kube-router"},
}

// ownTypes are a component's own types that matter to its lab. If a bundle has an object in several versions, the last
// version counts.
var ownTypes = map[string][]schema.GroupVersionResource{
	"cilium": versionsOf("cilium.io", []string{"v2alpha1", "v2"}, "ciliumbgpclusterconfigs", "ciliumbgppeerconfigs", "ciliumbgpadvertisements",
		"ciliumbgpnodeconfigoverrides", "ciliumbgppeeringpolicies", "ciliumloadbalancerippools", "ciliuml2announcementpolicies"),
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

// LikenessOf reads from a bundle how a component runs. From may be empty. The error is a *InputError if the bundle is
// not enough.
func LikenessOf(ctx context.Context, component, from, file string) (Likeness, error) {
	var l Likeness
	if components := upgrade.Components(); !slices.Contains(components, component) {
		return l, &InputError{fmt.Errorf("no component %q%s", component, topology.Nearest(component, components))}
	}
	b, err := bundle.Open(file, append(slices.Clone(cluster), ownTypes[component]...))
	if err != nil {
		return l, &InputError{err}
	}
	l.Told = each.Of(b.Broken, func(m snapshot.Missing) string { return "not read: " + m.String() })
	l.Told = append(l.Told, "the lab has nodes of its own, without the labels of the bundle's")
	runs, err := running(b, component, from)
	if err != nil {
		return l, &InputError{err}
	}
	l.From, l.Told = runs.version, append(l.Told, runs.notes...)
	switch {
	case component == "cilium" && bisect.Compare(l.From, labvalues.First) >= 0:
		err = l.values(ctx, b)
	case component == "cilium":
		has, why := configMap(b, cilium.ConfigMap)
		if l.NoConfig = why; why == "" {
			has.Kind, has.APIVersion = "ConfigMap", "v1" // items of a list may lack both
			var text []byte
			text, err = yaml.Marshal(has)
			l.Config = string(text)
		}
	case component == "metallb":
		l.Mode = runs.mode()
		l.Told = append(l.Told, "a bundle has no values of MetalLB's chart: the lab has the chart's own, unless --values has others")
	case upgrade.ConfigKey(component) != "":
		has, why := configMap(b, runs.configMaps()...)
		l.NoConfig = why
		if why == "" {
			if l.Config, err = documentIn(has.Data, upgrade.ConfigKey(component)); err != nil {
				l.NoConfig, err = fmt.Sprintf("ConfigMap %s/%s: %v", has.Namespace, has.Name, err), nil
			}
		}
	}
	if err == nil {
		err = l.manifests(b, component, runs.namespace)
	}
	return l, err
}

// InBundle are a bundle's versions of components, and the address families of its nodes' pods, or else of its nodes.
func InBundle(file string, components ...string) (versions map[string]string, families []topology.Family, err error) {
	b, err := bundle.Open(file, cluster)
	if err != nil {
		return nil, nil, err
	}
	versions = map[string]string{}
	for _, component := range components {
		if runs, err := running(b, component, ""); err == nil {
			versions[component] = runs.version
		}
	}
	ipv4, ipv6 := false, false
	for _, n := range objectsOf[corev1.Node](b, nodesOf) {
		addresses := n.Spec.PodCIDRs
		for _, a := range n.Status.Addresses {
			if len(n.Spec.PodCIDRs) == 0 && a.Type == corev1.NodeInternalIP {
				addresses = append(addresses, a.Address)
			}
		}
		for _, a := range addresses {
			is6 := strings.Contains(a, ":")
			ipv4, ipv6 = ipv4 || !is6, ipv6 || is6
		}
	}
	if ipv4 {
		families = append(families, topology.IPv4)
	}
	if ipv6 {
		families = append(families, topology.IPv6)
	}
	return versions, families, nil
}

// objectsOf are the objects of a resource, whether or not the bundle has all of the cluster.
func objectsOf[T any](b *bundle.Bundle, r schema.GroupVersionResource) (all []T) {
	texts, _ := b.Objects(r)
	for _, text := range texts {
		var o T
		if json.Unmarshal(text, &o) == nil { // else it is not of this type, whatever its kind says
			all = append(all, o)
		}
	}
	return all
}

type workload struct {
	namespace, name, version string
	container                corev1.Container
	volumes                  []corev1.Volume
	rolling                  bool // some of its pods run another image
	notes                    []string
}

func (w workload) String() string { return w.namespace + "/" + w.name + " runs " + w.container.Image }

// template is a DaemonSet's or a Deployment's pod template, and how many of its pods have it.
type template struct {
	appsv1.DaemonSet
	Status struct{ DesiredNumberScheduled, UpdatedNumberScheduled, Replicas, UpdatedReplicas *int32 } `json:"status"`
}

// workloads are the program's workloads in a bundle: all have a version in their image, others have none.
func (p program) workloads(b *bundle.Bundle) (all, others []workload) {
	for _, o := range objectsOf[template](b, p.resource) {
		desired := cmp.Or(o.Status.DesiredNumberScheduled, o.Status.Replicas)
		updated := cmp.Or(o.Status.UpdatedNumberScheduled, o.Status.UpdatedReplicas)
		if desired != nil && *desired == 0 || o.Spec.Template.Spec.NodeSelector[corev1.LabelOSStable] == "windows" {
			continue
		}
		for _, c := range o.Spec.Template.Spec.Containers {
			if !slices.Contains(p.containers, c.Name) {
				continue
			}
			w := workload{namespace: o.Namespace, name: o.Name, container: c, volumes: o.Spec.Template.Spec.Volumes}
			if w.rolling = desired != nil && (updated == nil || *updated < *desired); w.rolling {
				w.notes = append(w.notes, w.String()+" in some of its pods: a rollout was not finished")
			}
			if w.read(p.image); w.version == "" {
				others = append(others, w)
			} else {
				all = append(all, w)
			}
		}
	}
	return all, others
}

// running is the only workload of a component in a bundle, or the workload that runs the stated version.
func running(b *bundle.Bundle, component, stated string) (workload, error) {
	p := programs[component]
	all, others := p.workloads(b)
	ofStated := each.Where(all, func(w workload) bool { return w.version == stated })
	versions := map[string]bool{}
	for _, w := range all {
		versions[w.version] = true
	}
	switch found := append(all, others...); {
	case len(ofStated) > 0:
		return ofStated[0], nil
	case stated != "" && len(found) > 0:
		found[0].notes = append(found[0].notes, fmt.Sprintf("%s, and %s was asked for", found[0], stated))
		found[0].version = stated
		return found[0], nil
	case len(versions) > 1:
		return workload{}, fmt.Errorf("the bundle has several versions of %s: %s: expected FROM as well", component,
			each.Joined(all, "; ", workload.String))
	case len(all) > 0 && all[0].rolling:
		return workload{}, fmt.Errorf("%s: expected FROM as well", all[0].notes[0])
	case len(all) > 0:
		return all[0], nil
	case len(others) > 0:
		return workload{}, fmt.Errorf("the bundle does not state the version of %s: %s: expected FROM as well", component,
			each.Joined(others, "; ", workload.String))
	}
	return workload{}, fmt.Errorf("the bundle has no workload of %s (%s with a container %s)", component, p.resource.Resource,
		strings.Join(p.containers, " or "))
}

func (w *workload) read(image string) {
	ref, err := snapshot.ParseReference(w.container.Image)
	matches, own := ref.IsOf(image)
	version, built := snapshot.Version(ref.Tag)
	if err != nil || !matches {
		return
	}
	if w.version = version; version != "" && !(own && built) {
		w.notes = append(w.notes, fmt.Sprintf("%s: the lab has %s as its project has published it", w, version))
	}
}

func (w workload) mode() string {
	mode := metallb.Native
	for _, v := range w.container.Env {
		if v.Name == "METALLB_BGP_TYPE" {
			mode = cmp.Or(v.Value, mode)
		}
	}
	if strings.HasPrefix(mode, metallb.FRRK8s) { // or "frr-k8s-external"
		return metallb.FRRK8s
	}
	return mode
}

func (w workload) configMaps() (names []string) {
	for _, v := range w.volumes {
		if v.ConfigMap != nil {
			names = append(names, w.namespace+"/"+v.ConfigMap.Name)
		}
	}
	return names
}

// configMap is the first of some ConfigMaps that the bundle has; why says that it has none.
func configMap(b *bundle.Bundle, names ...string) (has corev1.ConfigMap, why string) {
	all := objectsOf[corev1.ConfigMap](b, configMaps)
	for _, name := range names {
		if has, there := each.First(all, func(o corev1.ConfigMap) bool { return o.Namespace+"/"+o.Name == name }); there {
			return has, ""
		}
	}
	return has, fmt.Sprintf("the bundle does not have the ConfigMap %s", strings.Join(names, ", nor "))
}

// manifests takes the objects of the component's own types: cluster-wide objects, and the objects in a namespace.
func (l *Likeness) manifests(b *bundle.Bundle, component, namespace string) error {
	whole := map[string]bool{}    // by resource, in one of its versions
	latest := map[string]string{} // by kind and name
	for _, r := range ownTypes[component] {
		objects, lacks := b.Objects(r)
		whole[r.Resource] = whole[r.Resource] || lacks == ""
		for _, text := range objects {
			var o unstructured.Unstructured
			if err := o.UnmarshalJSON(text); err != nil {
				return err
			}
			if o.GetNamespace() != "" && o.GetNamespace() != namespace {
				l.Told = append(l.Told, fmt.Sprintf("%s %s/%s is left out: %s runs in %s", o.GetKind(), o.GetNamespace(), o.GetName(),
					component, namespace))
				continue
			}
			document, err := yaml.Marshal(o.Object)
			if err != nil {
				return err
			}
			latest[o.GetKind()+" "+o.GetName()] = string(document)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(latest)) {
		l.Manifests += "---\n" + latest[name]
	}
	maps.DeleteFunc(whole, func(_ string, complete bool) bool { return complete })
	if len(whole) > 0 {
		says := "the bundle may not have all " + strings.Join(slices.Sorted(maps.Keys(whole)), ", ")
		if l.Manifests == "" {
			says += ": the lab has objects of its own"
		}
		l.Told = append(l.Told, says)
	}
	return nil
}

// valueOf are the values of Cilium's chart that the lab and its paths depend on, by their keys of cilium-config.
// Source: install/kubernetes/cilium/templates/cilium-configmap.yaml of 1.16 to 1.19.
var valueOf = map[string]string{
	"routing-mode": "routingMode", "tunnel-protocol": "tunnelProtocol", "ipam": "ipam.mode", "datapath-mode": "bpf.datapathMode",
	"auto-direct-node-routes": "autoDirectNodeRoutes", "enable-endpoint-routes": "endpointRoutes.enabled",
	"ipv4-native-routing-cidr": "ipv4NativeRoutingCIDR", "ipv6-native-routing-cidr": "ipv6NativeRoutingCIDR",
	"enable-ipv4": "ipv4.enabled", "enable-ipv6": "ipv6.enabled", "enable-bpf-masquerade": "bpf.masquerade",
	"enable-ipv4-masquerade": "enableIPv4Masquerade", "enable-ipv6-masquerade": "enableIPv6Masquerade",
	"kube-proxy-replacement": "kubeProxyReplacement", "bpf-lb-mode": "loadBalancer.mode", "bpf-lb-algorithm": "loadBalancer.algorithm",
	"bpf-lb-dsr-dispatch": "loadBalancer.dsrDispatch", "bpf-lb-sock-hostns-only": "socketLB.hostNamespaceOnly",
	"bpf-lb-external-clusterip": "bpf.lbExternalClusterIP", "enable-health-check-loadbalancer-ip": "nodePort.enableHealthCheckLoadBalancerIP",
	"enable-bgp-control-plane": "bgpControlPlane.enabled", "enable-l2-announcements": "l2announcements.enabled",
	"enable-wireguard": "encryption.enabled", "enable-ipsec": "encryption.enabled", "default-lb-service-ipam": "defaultLBServiceIPAM",
}

// values takes the values of the Helm release, or else the values that cilium-config implies. Told names the keys of
// cilium-config that a release with these values would set differently.
func (l *Likeness) values(ctx context.Context, b *bundle.Bundle) error {
	has, why := configMap(b, cilium.ConfigMap)
	file, text, err := b.HelmValues()
	if err != nil {
		return &InputError{err}
	}
	var values map[string]any
	switch err := yaml.Unmarshal(text, &values); {
	case err != nil:
		return &InputError{fmt.Errorf("%s is no map of values in YAML", file)}
	case len(values) > 0:
		l.Told = append(l.Told, "values from "+file)
	case why != "":
		return &InputError{fmt.Errorf("the bundle has no values in a file cilium-helm-values-*.yaml, and %s: expected --values as well", why)}
	default:
		values = valuesIn(has.Data)
		l.Told = append(l.Told, "the bundle has no values of the Helm release: they are taken from the ConfigMap "+cilium.ConfigMap)
	}
	document, err := yaml.Marshal(values)
	if err != nil {
		return err
	}
	if l.Values = string(document); why != "" {
		l.Told = append(l.Told, why+": whether the values are those with which the agents run is not known")
		return nil
	}
	c, err := published.Of(ctx, "cilium", l.From)
	if err != nil {
		return err
	}
	rendered, err := c.Render(chart.Release{Name: "cilium", Namespace: has.Namespace, Values: values, KubeVersion: kubeadm.KubernetesVersion})
	if refused := (*chart.RefusedError)(nil); errors.As(err, &refused) {
		return nil // the qualification reports it
	}
	own := chart.Find(rendered.Objects, "ConfigMap", path.Base(cilium.ConfigMap))
	if err != nil || own == nil {
		return err
	}
	data, _, _ := unstructured.NestedStringMap(own.Object, "data")
	differ := map[string]bool{}
	for _, keys := range []map[string]string{data, has.Data} {
		for key := range keys {
			if data[key] != has.Data[key] {
				differ[key] = true
			}
		}
	}
	if len(differ) > 0 {
		l.Told = append(l.Told, "keys of cilium-config that these values do not set as the bundle has them: "+
			strings.Join(slices.Sorted(maps.Keys(differ)), ", "))
	}
	return nil
}

func valuesIn(config map[string]string) map[string]any {
	values := map[string]any{}
	for key, at := range valueOf {
		var value any
		switch config[key] {
		case "":
			continue
		case "true", "false":
			value = config[key] == "true"
		default:
			value = config[key]
		}
		if encryption, encrypts := strings.CutPrefix(key, "enable-"); at == "encryption.enabled" && encrypts {
			if value != true {
				continue
			}
			_ = unstructured.SetNestedField(values, encryption, "encryption", "type")
		}
		_ = unstructured.SetNestedField(values, value, strings.Split(at, ".")...)
	}
	return values
}
