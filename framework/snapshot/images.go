package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
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

// PodImages is what the containers of a pod run. Pods in the host's network
// are listed as well; pods that have ended are left out.
type PodImages struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Node      string    `json:"node"`
	Created   time.Time `json:"created"`
	// OwnerKind and OwnerName are the workload's. A static pod's owner is its
	// Node; both are empty for a pod that nobody owns.
	OwnerKind string `json:"owner_kind,omitempty"`
	OwnerName string `json:"owner_name,omitempty"`
	// Template is the hash of the template that the pod was made from; empty
	// where there is none.
	Template   string             `json:"template,omitempty"`
	Containers []RunningContainer `json:"containers"`
}

func (p PodImages) String() string { return p.Namespace + "/" + p.Name }

// RunningContainer is a container of a pod.
type RunningContainer struct {
	Container
	// ImageID is what the kubelet says that it runs: NAME@DIGEST where the
	// node knows under which digest the image was pulled, otherwise the digest
	// of the image's configuration, which is another number. Empty until the
	// container is created.
	ImageID string `json:"image_id,omitempty"`
	// Restarts counts how often the container ended and was started again.
	Restarts int `json:"restarts,omitempty"`
	// Trouble says why the container does not run, or how its last life
	// ended, in the kubelet's words; empty when all is well.
	Trouble string `json:"trouble,omitempty"`
}

// Pulled is the digest under which the image was pulled; empty if the node
// does not tell.
func (c RunningContainer) Pulled() string { return ParseReference(c.ImageID).Digest }

// Tag is what the registry has under the name of an image.
type Tag struct {
	Image string `json:"image"` // as it was written
	// Digest is the one that a pull at this moment would bring.
	Digest string `json:"digest,omitempty"`
	// Error says why the registry did not tell.
	Error string `json:"error,omitempty"`
}

// Reference is the name of an image, taken apart.
type Reference struct {
	// Name is host and path. Tag and Digest are empty where the reference has
	// none.
	Name, Tag, Digest string
}

// ParseReference takes the name of an image apart. It does not judge whether
// a registry would accept it, and fills in no defaults.
func ParseReference(image string) Reference {
	var r Reference
	// Kubelets of old put the runtime's way of pulling in front.
	if _, rest, ok := strings.Cut(image, "://"); ok {
		image = rest
	}
	r.Name, r.Digest, _ = strings.Cut(image, "@")
	// A colon before the last slash is that of a port.
	if i := strings.LastIndexByte(r.Name, ':'); i > strings.LastIndexByte(r.Name, '/') {
		r.Name, r.Tag = r.Name[:i], r.Name[i+1:]
	}
	return r
}

// ImageReader tells what a cluster asks to run and what it runs. A *Cluster
// is one.
type ImageReader interface {
	Workloads(context.Context) ([]Workload, error)
	PodImages(context.Context) ([]PodImages, error)
}

// Resolver tells which digest a pull of an image would bring.
type Resolver interface {
	Resolve(ctx context.Context, image string) (digest string, err error)
}

// Workloads lists DaemonSets, Deployments and StatefulSets in order of kind,
// namespace and name.
func (c *Cluster) Workloads(ctx context.Context) ([]Workload, error) {
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

// PodImages lists what pods run, in order of namespace and name.
func (c *Cluster) PodImages(ctx context.Context) ([]PodImages, error) {
	l, err := c.core.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: notEnded})
	if err != nil {
		return nil, fmt.Errorf("listing Pods: %w", err)
	}
	pods := make([]PodImages, 0, len(l.Items))
	for _, o := range l.Items {
		p := PodImages{
			Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Node: o.Spec.NodeName, Created: o.CreationTimestamp.Time,
			Template: cmp.Or(o.Labels[appsv1.ControllerRevisionHashLabelKey], o.Labels[appsv1.DefaultDeploymentUniqueLabelKey]),
		}
		if owner := metav1.GetControllerOf(&o); owner != nil {
			p.OwnerKind, p.OwnerName = owner.Kind, owner.Name
			// A Deployment owns its pods through a ReplicaSet, which is named
			// after it and the template's hash.
			if name, ok := strings.CutSuffix(owner.Name, "-"+p.Template); ok && owner.Kind == "ReplicaSet" {
				p.OwnerKind, p.OwnerName = "Deployment", name
			}
		}
		statuses := map[string]corev1.ContainerStatus{}
		for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
			statuses[s.Name] = s
		}
		for _, asked := range containersOf(o.Spec) {
			s := statuses[asked.Name]
			p.Containers = append(p.Containers, RunningContainer{
				Container: asked, ImageID: s.ImageID, Restarts: int(s.RestartCount), Trouble: trouble(s),
			})
		}
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b PodImages) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods, nil
}

// trouble says what is wrong with a container, as far as its status tells.
func trouble(s corev1.ContainerStatus) string {
	var says []string
	if w := s.State.Waiting; w != nil && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
		says = append(says, strings.TrimSuffix(w.Reason+": "+w.Message, ": "))
	}
	for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
		if t != nil && t.ExitCode != 0 {
			says = append(says, strings.TrimSuffix(fmt.Sprintf("ended with status %d: %s", t.ExitCode, strings.TrimSpace(t.Message)), ": "))
		}
	}
	return strings.Join(says, "; ")
}

// maxResolving is how many questions a registry is asked at once.
const maxResolving = 8

// resolve asks a registry for each image that somebody asks for without
// saying which digest.
func resolve(ctx context.Context, registry Resolver, workloads []Workload, pods []PodImages) List[Tag] {
	began := time.Now()
	images := map[string]bool{}
	note := func(c Container) {
		if ParseReference(c.Image).Digest == "" {
			images[c.Image] = true
		}
	}
	for _, w := range workloads {
		for _, c := range w.Containers {
			note(c)
		}
	}
	for _, p := range pods {
		for _, c := range p.Containers {
			note(c.Container)
		}
	}
	l := List[Tag]{Read: true}
	for image := range images {
		l.Items = append(l.Items, Tag{Image: image})
	}
	slices.SortFunc(l.Items, func(a, b Tag) int { return cmp.Compare(a.Image, b.Image) })
	var all sync.WaitGroup
	places := make(chan struct{}, maxResolving)
	for i := range l.Items {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			digest, err := registry.Resolve(ctx, l.Items[i].Image)
			if err != nil {
				l.Items[i].Error = err.Error()
				return
			}
			l.Items[i].Digest = digest
		})
	}
	all.Wait()
	l.Took = time.Since(began)
	return l
}
