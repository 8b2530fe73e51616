package plan

import (
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// Pods says what pods run.
type Pods struct {
	Image string // of relapse, as the cluster pulls it
	// Cache is a PersistentVolumeClaim for what relapse downloads and builds. Without one
	// each pod builds its images anew.
	Cache string
}

const container = "relapse"

// Paths in a pod.
const (
	reports = "/reports"
	// docker is Docker's data folder. It must not be on the container's file system, which
	// is an overlay: overlays cannot be stacked on it.
	docker = "/var/lib/docker"
	// cache is where the image of relapse keeps what it downloads and builds.
	cache = "/root/.cache"
)

// runs is a container that runs a shard. In a pod that is not privileged, setup cannot fix
// the machine, and the shard ends with exit status 3.
func (p Pods) runs(args []string) corev1.Container {
	mounts := []corev1.VolumeMount{{Name: "docker", MountPath: docker}, {Name: "reports", MountPath: reports}}
	if p.Cache != "" {
		mounts = append(mounts, corev1.VolumeMount{Name: "cache", MountPath: cache})
	}
	return corev1.Container{
		Name: container, Image: p.Image, Args: args,
		// A lab creates containers, networks and mounts.
		SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			// What one lab needs if several run in parallel.
			corev1.ResourceCPU:              resource.MustParse("2"),
			corev1.ResourceMemory:           resource.MustParse("8Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("30Gi"),
		}},
		VolumeMounts: mounts,
	}
}

// volumes are the volumes of a container that runs a shard, without the one of its reports.
func (p Pods) volumes() []corev1.Volume {
	all := []corev1.Volume{scratch("docker")}
	if p.Cache != "" {
		all = append(all, claimed("cache", p.Cache))
	}
	return all
}

func scratch(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

func claimed(name, claim string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}
}

func write(out io.Writer, manifests ...any) error {
	for i, m := range manifests {
		text, err := yaml.Marshal(m)
		if err != nil {
			return fmt.Errorf("encoding a manifest: %w", err)
		}
		if i > 0 {
			text = slices.Concat([]byte("---\n"), text)
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	return nil
}
