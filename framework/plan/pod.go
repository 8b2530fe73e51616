package plan

import (
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// Source is where pods have relapse from: it builds its images from its own source,
// and no image of it is published.
type Source struct {
	Repository string // a URL that git fetches from
	Ref        string // a branch, a tag or a commit
	// Image has git, make and Go in it, and is a Debian: what else a lab needs is
	// installed by relapse setup.
	Image string
}

// Where things are in a pod.
const (
	reports = "/reports"
	// docker is where Docker keeps its data. Its file system must not be that of the
	// container, which is an overlay: an overlay lies on none.
	docker = "/var/lib/docker"
)

// checkout fetches relapse and builds it. What follows is called with its arguments.
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

// runs is a container that runs a shard. Doctor speaks first: in a pod that is not
// privileged it says so, and setup, which would cure what can be cured, ends the shard
// with exit status 3.
func (s Source) runs(args []string) corev1.Container {
	return corev1.Container{
		Name: "relapse", Image: s.Image,
		Command: s.checkout("bin/relapse doctor || bin/relapse setup\nexec bin/relapse \"$@\"\n", args),
		// A lab makes containers, networks and mounts.
		SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			// What one lab is given where several run side by side.
			corev1.ResourceCPU:              resource.MustParse("2"),
			corev1.ResourceMemory:           resource.MustParse("8Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("30Gi"),
		}},
		VolumeMounts: []corev1.VolumeMount{{Name: "docker", MountPath: docker}, {Name: "reports", MountPath: reports}},
	}
}

// scratch is an empty folder for as long as a pod lives.
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
