package snapshot

import (
	"cmp"
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Workload is an object that makes pods from a template.
type Workload struct {
	Kind      string `json:"kind"` // DaemonSet, Deployment or StatefulSet
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// HostNetwork is set if its pods are in the nodes' network.
	HostNetwork bool `json:"host_network,omitempty"`
	// Containers are those of the template, init containers first.
	Containers []Container `json:"containers"`
}

// Container is what a pod template, or a pod, asks for.
type Container struct {
	Name string `json:"name"`
	Init bool   `json:"init,omitempty"`
	// Image is the reference as it was written; ParseReference takes it apart.
	Image string `json:"image"`
	// PullPolicy is Always, IfNotPresent or Never; the API server has filled in the default.
	PullPolicy string `json:"pull_policy"`
}

// Workloads is the source of DaemonSets, Deployments and StatefulSets, in
// order of kind, namespace and name.
var Workloads = clusterList("workloads",
	[]*resource{listedDaemonSets.resource, listedDeployments.resource, listedStatefulSets.resource}, (*cluster).workloads,
	func(s *Snapshot) *List[Workload] { return &s.Workloads }, Workload.state)

func (w Workload) state(to *statements) {
	for _, c := range w.Containers {
		to.add(API, "template", w.Kind+" "+w.Namespace+"/"+w.Name+", "+c.Kind()+" "+c.Name, "", "%s, pulled %s", c.Image, c.PullPolicy)
	}
}

// Kind is "container" or "init container".
func (c Container) Kind() string {
	if c.Init {
		return "init container"
	}
	return "container"
}

var (
	apps             = appsv1.SchemeGroupVersion
	listedDaemonSets = listing(resourceOf(apps, "daemonsets", "DaemonSets"),
		func(o *appsv1.DaemonSet) (Workload, bool, error) {
			return workload("DaemonSet", o.ObjectMeta, o.Spec.Template), true, nil
		})
	listedDeployments = listing(resourceOf(apps, "deployments", "Deployments"),
		func(o *appsv1.Deployment) (Workload, bool, error) {
			return workload("Deployment", o.ObjectMeta, o.Spec.Template), true, nil
		})
	listedStatefulSets = listing(resourceOf(apps, "statefulsets", "StatefulSets"),
		func(o *appsv1.StatefulSet) (Workload, bool, error) {
			return workload("StatefulSet", o.ObjectMeta, o.Spec.Template), true, nil
		})
)

func workload(kind string, meta metav1.ObjectMeta, template corev1.PodTemplateSpec) Workload {
	return Workload{Kind: kind, Namespace: meta.Namespace, Name: meta.Name, HostNetwork: template.Spec.HostNetwork,
		Containers: containersOf(template.Spec)}
}

func (c *cluster) workloads(ctx context.Context) ([]Workload, error) {
	daemonSets, err := listedDaemonSets.items(ctx, c)
	deployments, err2 := listedDeployments.items(ctx, c)
	statefulSets, err3 := listedStatefulSets.items(ctx, c)
	if err := failures(err, err2, err3); err != nil {
		return nil, err
	}
	all := slices.Concat(daemonSets, deployments, statefulSets)
	slices.SortFunc(all, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

func containersOf(spec corev1.PodSpec) []Container {
	var all []Container
	for _, c := range spec.InitContainers {
		all = append(all, Container{Name: same(c.Name), Init: true, Image: same(c.Image), PullPolicy: same(string(c.ImagePullPolicy))})
	}
	for _, c := range spec.Containers {
		all = append(all, Container{Name: same(c.Name), Image: same(c.Image), PullPolicy: same(string(c.ImagePullPolicy))})
	}
	return all
}
