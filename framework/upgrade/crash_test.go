package upgrade

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/framework/component/metallb"
	"github.com/relapse-dev/relapse/topology/must"
)

// The agent's own container tells the version of a pod, not what runs beside it.
func TestRuns(t *testing.T) {
	r := metallb.Release{Version: "0.14.8"}
	var pod corev1.Pod
	for _, image := range r.Images() { // FRR is that of any version
		if !strings.Contains(image, "controller") {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Image: image})
		}
	}
	must.Equal(t, pod.Spec.Containers, 2, len(pod.Spec.Containers))
	must.NoError(t, runs(pod, metallb.SpeakerImage("0.14.8")))
	must.Fail(t, runs(pod, metallb.SpeakerImage("0.14.9")), "")
}
