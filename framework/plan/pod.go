package plan

import (
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// Source is where pods fetch relapse: it builds its images from its own source, and no
// image of it is published.
type Source struct {
	Repository string // a URL that git fetches from
	Ref        string // a branch, a tag or a commit
	// Image is a Debian with git, make and Go. relapse setup installs what else a lab
	// needs.
	Image string
}

// Paths in a pod.
const (
	reports = "/reports"
	// docker is Docker's data folder. It must not be on the container's file system, which
	// is an overlay: overlays cannot be stacked on it.
	docker = "/var/lib/docker"
)

// checkout fetches and builds relapse, and then runs a script with arguments.
func (s Source) checkout(then string, args []string) []string {
	script := `set -eu
cd "$(mktemp -d)"
git init --quiet
git fetch --quiet --depth=1 "$0" "$1" && git checkout --quiet FETCH_HEAD
shift
make build
` + then
	return append([]string{"/bin/bash", "-c", script, s.Repository, s.Ref}, args...)
}

// runs is a container that runs a shard. It runs doctor first: in a pod that is not
// privileged, setup cannot fix the machine, and the shard ends with exit status 3.
func (s Source) runs(args []string) corev1.Container {
	return corev1.Container{
		Name: "relapse", Image: s.Image,
		Command: s.checkout("bin/relapse doctor || bin/relapse setup\nexec bin/relapse \"$@\"\n", args),
		// A lab creates containers, networks and mounts.
		SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			// What one lab needs if several run in parallel.
			corev1.ResourceCPU:              resource.MustParse("2"),
			corev1.ResourceMemory:           resource.MustParse("8Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("30Gi"),
		}},
		VolumeMounts: []corev1.VolumeMount{{Name: "docker", MountPath: docker}, {Name: "reports", MountPath: reports}},
	}
}

// scratch is an empty folder with the lifetime of a pod.
func scratch(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// write writes manifests as documents of one YAML file.
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
