package workload

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestAgain(t *testing.T) {
	pod := func(uid, id string, ready corev1.ConditionStatus) corev1.Pod {
		var p corev1.Pod
		p.UID, p.Name = "other", "agent"
		if uid != "" {
			p.UID = "same"
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", ContainerID: id}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		return p
	}
	crashed := Crashed{Pod: pod("same", "a", corev1.ConditionTrue)}
	for _, test := range []struct {
		name  string
		pod   corev1.Pod
		again bool
		saw   string
	}{
		{"as before: kubelet has not seen the crash", pod("same", "a", corev1.ConditionTrue), false, "not started again: agent"},
		{"started and not ready", pod("same", "b", corev1.ConditionFalse), false, "pod /agent is "},
		{"ready", pod("same", "b", corev1.ConditionTrue), true, ""},
		{"another pod", pod("", "b", corev1.ConditionTrue), false, "it was deleted"},
	} {
		_, again, saw := crashed.again([]corev1.Pod{test.pod})
		must.Equal(t, test.name, [2]any{test.again, test.saw}, [2]any{again, saw})
	}
	back := Crashed{Pod: pod("same", "b", corev1.ConditionTrue), back: true}
	_, again, saw := back.again([]corev1.Pod{back.Pod})
	must.Equal(t, "asked once more: "+saw, [2]any{true, 0}, [2]any{again, len(back.started(back.Pod))})
	must.Equal(t, "started once more", []string{"agent"}, back.started(pod("same", "c", corev1.ConditionTrue)))
}
