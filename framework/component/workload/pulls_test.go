package workload

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPullTimes(t *testing.T) {
	began := time.Unix(1000, 500)
	event := func(second int64, node, message string) corev1.Event {
		return corev1.Event{Source: corev1.EventSource{Host: node}, FirstTimestamp: metav1.Unix(second, 0), Message: message}
	}
	// The kubelet's words, of Kubernetes 1.34.4.
	const says = `Successfully pulled image "docker.io/cloudnativelabs/kube-router" in 612ms (613ms including waiting). Image size: 60731234 bytes.`
	got := pullTimes([]corev1.Event{
		event(1000, "worker1", says),
		event(1004, "master", strings.Replace(says, "612ms", "1.25s", 1)),
		event(999, "worker2", says),
		event(1001, "worker2", `Container image "docker.io/cloudnativelabs/kube-router" already present on machine`),
		event(1001, "worker2", `Successfully pulled image "relapse.dev/probe:dev" in 10ms (10ms including waiting). Image size: 9 bytes.`),
	}, "docker.io/cloudnativelabs/kube-router", began)
	if len(got) != 2 || got[0].Node != "master" || got[0].TookMS != 1250 || got[1].Node != "worker1" || got[1].TookMS != 612 {
		t.Errorf("%+v", got)
	}
}

func TestPullError(t *testing.T) {
	waiting := func(reason, message string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{
			Name: "kube-router", Image: "docker.io/cloudnativelabs/kube-router",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}
	}
	pod := func(statuses []corev1.ContainerStatus) corev1.Pod {
		return corev1.Pod{Spec: corev1.PodSpec{NodeName: "worker1"}, Status: corev1.PodStatus{ContainerStatuses: statuses}}
	}
	const prefix = "node worker1 cannot pull docker.io/cloudnativelabs/kube-router for container kube-router: "
	for _, tt := range []struct {
		name            string
		reason, message string
		want            string
	}{
		{"being made", "ContainerCreating", "", ""},
		{"crashing", "CrashLoopBackOff", "back-off 10s", ""},
		{
			"registry unreachable", "ErrImagePull", `failed to do request: Head "http://10.20.4.253:5000/v2/...": connection refused`,
			prefix + `ErrImagePull: failed to do request: Head "http://10.20.4.253:5000/v2/...": connection refused`,
		},
		{"no such tag", "ErrImagePull", "docker.io/cloudnativelabs/kube-router:latest: not found", prefix + "ErrImagePull: docker.io/cloudnativelabs/kube-router:latest: not found"},
		{"another digest", "ErrImagePull", "commit failed: unexpected commit digest", prefix + "ErrImagePull: commit failed: unexpected commit digest"},
		{"tried before", "ImagePullBackOff", "Back-off pulling image", prefix + "ImagePullBackOff: Back-off pulling image"},
		{"no name", "InvalidImageName", "invalid reference format", prefix + "InvalidImageName: invalid reference format"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fine := pod([]corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}})
			err := PullError(fine, pod(waiting(tt.reason, tt.message)))
			if (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
	if err := PullError(corev1.Pod{Spec: corev1.PodSpec{NodeName: "worker1"}, Status: corev1.PodStatus{InitContainerStatuses: waiting("ErrImagePull", "")}}); err == nil {
		t.Error("an init container that cannot be pulled is passed over")
	}
}

// A container ends by itself if kubelet waits before it starts it again, and its last status
// is neither a signal's nor that of one that used too much memory.
func TestEndsByItself(t *testing.T) {
	status := func(reason string, restarts, exit int32, waits string) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			RestartCount: restarts, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waits}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: exit}},
		}
	}
	for name, test := range map[string]struct {
		status corev1.ContainerStatus
		want   bool
	}{
		"by itself":       {status("Error", 2, 1, "CrashLoopBackOff"), true},
		"a panic of Go":   {status("Error", 1, 2, "CrashLoopBackOff"), true},
		"once":            {status("Error", 0, 1, "CrashLoopBackOff"), false},
		"its memory":      {status("OOMKilled", 2, 137, "CrashLoopBackOff"), false},
		"a signal":        {status("Error", 2, 143, "CrashLoopBackOff"), false},
		"no image":        {status("Error", 2, 1, "ImagePullBackOff"), false},
		"never started":   {corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}, false},
		"it was finished": {status("Completed", 2, 0, "CrashLoopBackOff"), false},
	} {
		if got := endsByItself(test.status); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
