package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/each"
)

// PodImages is what the containers of a pod run. Pods in the host's network
// are listed as well; pods that have ended are left out.
type PodImages struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Node      string    `json:"node"`
	Created   time.Time `json:"created"`
	// OwnerKind and OwnerName are the workload's: of a Job that a CronJob has made, the CronJob's. A static
	// pod's owner is its Node; both are empty for a pod without an owner.
	OwnerKind string `json:"owner_kind,omitempty"`
	OwnerName string `json:"owner_name,omitempty"`
	// HostNetwork is set if the pod is in its node's network.
	HostNetwork bool `json:"host_network,omitempty"`
	// ServiceAccount is the one that its processes run with, in its namespace; empty for a
	// static pod.
	ServiceAccount string `json:"service_account,omitempty"`
	// Template is the hash of the template that the pod was made from; empty where there is none.
	Template   string             `json:"template,omitempty"`
	Containers []RunningContainer `json:"containers"`
}

func (p PodImages) String() string { return p.Namespace + "/" + p.Name }

// RunningContainer is a container of a pod.
type RunningContainer struct {
	Container
	// ImageID is what the kubelet says that it runs: NAME@DIGEST where the node knows under which
	// digest the image was pulled, otherwise the digest of the image's configuration, which is
	// another number. Empty until the container is created.
	ImageID string `json:"image_id,omitempty"`
	// Restarts counts how often the container ended and was started again.
	Restarts int `json:"restarts,omitempty"`
	// Trouble says why the container does not run, or how its last life
	// ended, in the kubelet's words; empty when all is well.
	Trouble string `json:"trouble,omitempty"`
}

// Pulled is the digest under which the image was pulled; empty if the node does not report it.
func (c RunningContainer) Pulled() string {
	ref, _ := ParseReference(c.ImageID)
	return ref.Digest
}

// RunningImages is the source of what pods run, in order of namespace and name.
var RunningImages = clusterList("images of Pods", []*resource{listedPods.resource}, (*cluster).podImages,
	func(s *Snapshot) *List[PodImages] { return &s.PodImages }, PodImages.state)

func (p PodImages) state(to *statements) {
	for _, c := range p.Containers {
		object := p.OwnerKind + " " + p.Namespace + "/" + p.OwnerName + ", " + c.Kind() + " " + c.Name
		to.add(Kernel, "runs on "+p.Node, object, "", "%s", cmp.Or(c.ImageID, "nothing yet"))
	}
}

func (c *cluster) podImages(ctx context.Context) ([]PodImages, error) {
	all, err := listedPods.items(ctx, c)
	return each.Of(all, func(p keptPod) PodImages { return p.images }), err
}

func podImagesOf(o *corev1.Pod) PodImages {
	p := PodImages{
		Namespace: same(o.Namespace), Name: o.Name, UID: string(o.UID), Node: same(o.Spec.NodeName), Created: o.CreationTimestamp.Time,
		ServiceAccount: same(o.Spec.ServiceAccountName), HostNetwork: o.Spec.HostNetwork,
		Template: same(cmp.Or(o.Labels[appsv1.ControllerRevisionHashLabelKey], o.Labels[appsv1.DefaultDeploymentUniqueLabelKey])),
	}
	if owner := metav1.GetControllerOf(o); owner != nil {
		p.OwnerKind, p.OwnerName = same(owner.Kind), same(owner.Name)
		// A Deployment owns its pods through a ReplicaSet, which is named
		// after it and the template's hash.
		if name, ok := strings.CutSuffix(owner.Name, "-"+p.Template); ok && owner.Kind == "ReplicaSet" {
			p.OwnerKind, p.OwnerName = "Deployment", same(name)
		}
		if name, found := cronJob(owner.Name, p.Created); found && owner.Kind == "Job" {
			p.OwnerKind, p.OwnerName = "CronJob", same(name)
		}
	}
	statuses := map[string]corev1.ContainerStatus{}
	for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
		statuses[s.Name] = s
	}
	for _, asked := range containersOf(o.Spec) {
		s := statuses[asked.Name]
		p.Containers = append(p.Containers, RunningContainer{
			Container: asked, ImageID: same(s.ImageID), Restarts: int(s.RestartCount), Trouble: trouble(s),
		})
	}
	return p
}

// cronJob is the CronJob that has made a Job, whose name ends in the minutes since 1970 for which it was
// scheduled (kubernetes/pkg/controller/cronjob). A pod of it is younger, by a week at most.
func cronJob(job string, pod time.Time) (name string, found bool) {
	at := strings.LastIndexByte(job, '-')
	minutes, err := strconv.ParseInt(job[at+1:], 10, 64)
	age := pod.Sub(time.Unix(minutes*60, 0))
	return job[:max(0, at)], err == nil && at > 0 && age >= -time.Minute && age < 7*24*time.Hour
}

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

// ImageInUse is an image that containers of pods run.
type ImageInUse struct {
	// Image is the reference as it was written.
	Image string `json:"image"`
	// Digest is the one under which the image was pulled; empty if the node does not report it.
	Digest string `json:"digest,omitempty"`
	// Containers is the number of containers.
	Containers int `json:"containers"`
}

// ImagesInUse are the images of the containers that were created, in order of reference and digest.
func (s Snapshot) ImagesInUse() []ImageInUse {
	count := map[ImageInUse]int{}
	for _, p := range s.PodImages.Items {
		for _, c := range p.Containers {
			if c.ImageID != "" {
				count[ImageInUse{Image: c.Image, Digest: c.Pulled()}]++
			}
		}
	}
	all := slices.SortedFunc(maps.Keys(count), func(a, b ImageInUse) int {
		return cmp.Or(cmp.Compare(a.Image, b.Image), cmp.Compare(a.Digest, b.Digest))
	})
	for i := range all {
		all[i].Containers = count[all[i]]
	}
	return all
}
