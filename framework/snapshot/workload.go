package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Workload is an object that makes pods from a template.
type Workload struct {
	Kind      string `json:"kind"` // DaemonSet, Deployment or StatefulSet
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Containers are those of the template, init containers first.
	Containers []Container `json:"containers"`
}

// Container is what a pod template, or a pod, asks for.
type Container struct {
	Name string `json:"name"`
	Init bool   `json:"init,omitempty"`
	// Image is the reference as it was written; ParseReference takes it apart.
	Image string `json:"image"`
	// PullPolicy is Always, IfNotPresent or Never; the API server has filled
	// in the default.
	PullPolicy string `json:"pull_policy"`
}

// Workloads is the source of DaemonSets, Deployments and StatefulSets, in
// order of kind, namespace and name.
var Workloads = clusterList("workloads", (*cluster).workloads, func(s *Snapshot) *List[Workload] { return &s.Workloads }, Workload.state)

// names leaves out the name of the workload: it says which software runs, not whose.
func (w Workload) names(to *Names) { to.Namespaces[w.Namespace] = true }

func (w Workload) state(to *statements) {
	for _, c := range w.Containers {
		to.add(API, "template", w.Kind+" "+w.Namespace+"/"+w.Name+", "+c.kind()+" "+c.Name, "", "%s, pulled %s", c.Image, c.PullPolicy)
	}
}

func (c Container) kind() string {
	if c.Init {
		return "init container"
	}
	return "container"
}

func (c *cluster) workloads(ctx context.Context) ([]Workload, error) {
	var all []Workload
	add := func(kind string, meta metav1.ObjectMeta, template corev1.PodTemplateSpec) {
		all = append(all, Workload{Kind: kind, Namespace: meta.Namespace, Name: meta.Name, Containers: containersOf(template.Spec)})
	}
	everywhere, options := metav1.NamespaceAll, metav1.ListOptions{}
	daemonSets, err := c.apps.DaemonSets(everywhere).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("listing DaemonSets: %w", err)
	}
	for _, o := range daemonSets.Items {
		add("DaemonSet", o.ObjectMeta, o.Spec.Template)
	}
	deployments, err := c.apps.Deployments(everywhere).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("listing Deployments: %w", err)
	}
	for _, o := range deployments.Items {
		add("Deployment", o.ObjectMeta, o.Spec.Template)
	}
	statefulSets, err := c.apps.StatefulSets(everywhere).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("listing StatefulSets: %w", err)
	}
	for _, o := range statefulSets.Items {
		add("StatefulSet", o.ObjectMeta, o.Spec.Template)
	}
	slices.SortFunc(all, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

func containersOf(spec corev1.PodSpec) []Container {
	var all []Container
	for _, c := range spec.InitContainers {
		all = append(all, Container{Name: c.Name, Init: true, Image: c.Image, PullPolicy: string(c.ImagePullPolicy)})
	}
	for _, c := range spec.Containers {
		all = append(all, Container{Name: c.Name, Image: c.Image, PullPolicy: string(c.ImagePullPolicy)})
	}
	return all
}
