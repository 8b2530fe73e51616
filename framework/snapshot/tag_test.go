package snapshot

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

const (
	oldDigest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	newDigest = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

func TestParseReference(t *testing.T) {
	for _, tt := range []struct {
		name, image string
		want        Reference
	}{
		{"no tag", "docker.io/cloudnativelabs/kube-router", Reference{Name: "docker.io/cloudnativelabs/kube-router"}},
		{"a tag", "registry.k8s.io/pause:3.10", Reference{Name: "registry.k8s.io/pause", Tag: "3.10"}},
		{"short", "busybox:latest", Reference{Name: "busybox", Tag: "latest"}},
		{"a port, no tag", "registry:5000/tor", Reference{Name: "registry:5000/tor"}},
		{"a port and a tag", "registry:5000/tor:dev", Reference{Name: "registry:5000/tor", Tag: "dev"}},
		{"a digest", "quay.io/cilium/cilium@" + oldDigest, Reference{Name: "quay.io/cilium/cilium", Digest: oldDigest}},
		{"a tag and a digest", "quay.io/cilium/cilium:v1@" + oldDigest, Reference{Name: "quay.io/cilium/cilium", Tag: "v1", Digest: oldDigest}},
		{"an image ID of old", "docker-pullable://quay.io/cilium/cilium@" + oldDigest, Reference{Name: "quay.io/cilium/cilium", Digest: oldDigest}},
		{"the digest of a configuration", oldDigest, Reference{Name: "sha256", Tag: oldDigest[len("sha256:"):]}},
		{"nothing", "", Reference{}},
		{"what no runtime takes", "docker.io/Kube Router", Reference{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseReference(tt.image)
			must.Equal(t, err, tt.want, got)
			must.Equal(t, err, tt.want != Reference{}, err == nil)
		})
	}
}

func FuzzParseReference(f *testing.F) {
	f.Add("registry:5000/tor:dev@" + oldDigest)
	f.Fuzz(func(t *testing.T, image string) {
		ref, err := ParseReference(image)
		must.Equal(t, ref, false, err == nil && ref.Name+ref.Digest == "")
	})
}

// routerSpec is a pod template in the shape of kube-router's.
var routerSpec = corev1.PodSpec{
	InitContainers: []corev1.Container{{Name: "install-cni", Image: "docker.io/cloudnativelabs/kube-router", ImagePullPolicy: corev1.PullAlways}},
	Containers:     []corev1.Container{{Name: "kube-router", Image: "docker.io/cloudnativelabs/kube-router", ImagePullPolicy: corev1.PullAlways}},
	NodeName:       "worker1",
}

func owned(kind, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "kube-system", Name: name + "-x", UID: "u", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: name, Controller: new(true)}},
	}
}

func TestClusterImages(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "kube-system", Name: name} }
	template := corev1.PodTemplateSpec{Spec: routerSpec}
	id := "docker.io/cloudnativelabs/kube-router@" + newDigest
	crashed := corev1.ContainerStatus{Name: "kube-router", ImageID: id, RestartCount: 2,
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "no RBAC\n"}}}
	done := corev1.ContainerStatus{Name: "install-cni", ImageID: id, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
	pods := corev1.PodList{Items: []corev1.Pod{
		{ObjectMeta: owned("DaemonSet", "kube-router", map[string]string{appsv1.ControllerRevisionHashLabelKey: "abc"}),
			Spec:   routerSpec,
			Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{done}, ContainerStatuses: []corev1.ContainerStatus{crashed}}},
		{ObjectMeta: owned("ReplicaSet", "coredns-5c6", map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "5c6"})},
		{ObjectMeta: owned("Node", "worker1", nil)},
		{ObjectMeta: owned("Job", "backup-29712345", nil)}, {ObjectMeta: owned("Job", "import-20260101", nil)},
	}}
	for i, age := range []time.Duration{time.Hour, 0} {
		pods.Items[3+i].CreationTimestamp = metav1.NewTime(time.Unix(29712345*60, 0).Add(age))
	}
	apps := appsv1.SchemeGroupVersion
	c := clusterOf(t, map[string]http.HandlerFunc{
		"/apis/apps/v1/daemonsets":   protobufOf(t, apps, &appsv1.DaemonSetList{Items: []appsv1.DaemonSet{{ObjectMeta: meta("kube-router"), Spec: appsv1.DaemonSetSpec{Template: template}}}}),
		"/apis/apps/v1/deployments":  protobufOf(t, apps, &appsv1.DeploymentList{Items: []appsv1.Deployment{{ObjectMeta: meta("coredns")}}}),
		"/apis/apps/v1/statefulsets": protobufOf(t, apps, &appsv1.StatefulSetList{Items: []appsv1.StatefulSet{{ObjectMeta: meta("db")}}}),
		podsPath:                     protobuf(t, &pods),
	})
	asked := []Container{
		{Name: "install-cni", Init: true, Image: "docker.io/cloudnativelabs/kube-router", PullPolicy: "Always"},
		{Name: "kube-router", Image: "docker.io/cloudnativelabs/kube-router", PullPolicy: "Always"},
	}
	must.Equal(t, "Workloads()", []Workload{
		{Kind: "DaemonSet", Namespace: "kube-system", Name: "kube-router", Containers: asked},
		{Kind: "Deployment", Namespace: "kube-system", Name: "coredns"},
		{Kind: "StatefulSet", Namespace: "kube-system", Name: "db"},
	}, must.Get(c.workloads(t.Context()))(t))
	got := must.Get(c.podImages(t.Context()))(t)
	must.Equal(t, "PodImages()", []PodImages{
		{Namespace: "kube-system", Name: "backup-29712345-x", UID: "u", OwnerKind: "CronJob", OwnerName: "backup", Created: time.Unix(29712345*60+3600, 0)},
		{Namespace: "kube-system", Name: "coredns-5c6-x", UID: "u", OwnerKind: "Deployment", OwnerName: "coredns", Template: "5c6"},
		{Namespace: "kube-system", Name: "import-20260101-x", UID: "u", OwnerKind: "Job", OwnerName: "import-20260101", Created: time.Unix(29712345*60, 0)},
		{Namespace: "kube-system", Name: "kube-router-x", UID: "u", Node: "worker1", OwnerKind: "DaemonSet", OwnerName: "kube-router", Template: "abc",
			Containers: []RunningContainer{
				{Container: asked[0], ImageID: id},
				{Container: asked[1], ImageID: id, Restarts: 2, Trouble: "CrashLoopBackOff: back-off 10s; ended with status 1: no RBAC"},
			}},
		{Namespace: "kube-system", Name: "worker1-x", UID: "u", OwnerKind: "Node", OwnerName: "worker1"},
	}, got)
	must.Equal(t, "Pulled()", newDigest, got[3].Containers[0].Pulled())
}

type fakeRegistry map[string]string

func (f fakeRegistry) Resolve(_ context.Context, image string) (string, error) {
	if digest, ok := f[image]; ok {
		return digest, nil
	}
	return "", errors.New("MANIFEST_UNKNOWN")
}

// The registry is asked once for each name that workloads and pods have, though only its source was asked for.
func TestTags(t *testing.T) {
	container := func(image string) corev1.Container { return corev1.Container{Name: image, Image: image} }
	apps := appsv1.SchemeGroupVersion
	set := appsv1.DaemonSet{}
	set.Spec.Template.Spec.Containers = []corev1.Container{container("b:1"), container("quay.io/cilium/cilium@" + oldDigest)}
	pod := corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{container("a:2"), container("b:1")}}}
	s := open(t, fakeAccess{
		registry: fakeRegistry{"b:1": newDigest},
		api: serve(t, map[string]http.HandlerFunc{
			"/apis/apps/v1/daemonsets":   protobufOf(t, apps, &appsv1.DaemonSetList{Items: []appsv1.DaemonSet{set}}),
			"/apis/apps/v1/deployments":  protobufOf(t, apps, &appsv1.DeploymentList{}),
			"/apis/apps/v1/statefulsets": protobufOf(t, apps, &appsv1.StatefulSetList{}),
			podsPath:                     protobuf(t, &corev1.PodList{Items: []corev1.Pod{pod}}),
		}),
	}, Tags).Collect(t.Context())
	must.Equal(t, "tags", []Tag{{Image: "a:2", Error: "MANIFEST_UNKNOWN"}, {Image: "b:1", Digest: newDigest}}, s.Tags.Items)
	must.Equal(t, "Unread()", []Missing{{"the registry's a:2", "MANIFEST_UNKNOWN"}}, s.Unavailable())
	s = open(t, fakeAccess{registry: fakeRegistry{}, api: serve(t, nil)}, Tags).Collect(t.Context())
	must.Equal(t, "Unread() where no list is answered", "the names of images", s.Unavailable()[0].Source)
}
