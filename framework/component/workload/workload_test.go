package workload

import (
	"net/netip"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestObjects(t *testing.T) {
	objects, err := Objects("# a comment\n---\nkind: ConfigMap\nmetadata: {name: first}\n---\n\n---\nkind: Service\nmetadata: {name: second}\n")
	must.NoError(t, err)
	var names []string
	for _, o := range objects {
		names = append(names, o.GetKind()+" "+o.GetName())
	}
	must.Equal(t, "objects", []string{"ConfigMap first", "Service second"}, names)
	must.Fail(t, must.Err(Objects("kind: [unclosed")), "reading a manifest: ")
}

// On a dual lab a Service asks for the address of each family, in the way that takes two.
func TestBalancerAsksForBothFamilies(t *testing.T) {
	s := LoadBalancer{Name: "local", Pod: "worker1", Policy: "Local", Address: netip.MustParseAddr("10.66.128.2")}
	for dual, want := range map[bool][2]string{
		false: {"loadBalancerIP: 10.66.128.2", "annotations: {}"},
		true:  {"ipFamilyPolicy: RequireDualStack", `{metallb.universe.tf/loadBalancerIPs: "10.66.128.2,fd5c:3f1e:a2d7::a42:8002"}`},
	} {
		text := must.Get(s.manifest(topology.Topology{Dual: dual}))(t)
		must.Contain(t, text, want[:]...)
		must.Equal(t, text, [2]any{!dual, 1}, [2]any{strings.Contains(text, "loadBalancerIP:"), len(must.Get(Objects(text))(t))})
	}
}

// pod is a pod of the third generation of its DaemonSet's template, with one container in the state that is given.
func pod(node string, phase corev1.PodPhase, state corev1.ContainerStatus) corev1.Pod {
	state.Name, state.Image = "agent", "example.com/agent:v1"
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent-" + node, Labels: map[string]string{generationLabel: "3"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "agent"}}},
		Status:     corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{state}},
	}
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func with(pod corev1.Pod, change func(*corev1.Pod)) corev1.Pod {
	change(&pod)
	return pod
}

func TestRollout(t *testing.T) {
	creating := corev1.ContainerStatus{State: waiting("ContainerCreating", "")}
	started := corev1.ContainerStatus{ContainerID: "containerd://1"}
	crashed := corev1.ContainerStatus{ContainerID: "containerd://1", State: waiting("CrashLoopBackOff", "back-off 10s")}
	unpulled := corev1.ContainerStatus{State: waiting("ErrImagePull", "not found")}
	isReady := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	isOld := func(p *corev1.Pod) { p.Labels = map[string]string{generationLabel: "2"} }
	isGoing := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	a := with(pod("a", corev1.PodRunning, started), isReady)
	for _, c := range []struct {
		name           string
		pods           []corev1.Pod
		started, ready string // what is missing
		pulling        string
	}{
		{"ready on both nodes", []corev1.Pod{a, with(pod("b", corev1.PodRunning, started), isReady)}, "", "", ""},
		{"started is not ready", []corev1.Pod{a, pod("b", corev1.PodRunning, started)}, "", "b: pod kube-system/agent-b is Running", ""},
		{"what has crashed was started", []corev1.Pod{a, pod("b", corev1.PodRunning, crashed)}, "",
			"b: pod kube-system/agent-b is Running; container agent waits: CrashLoopBackOff back-off 10s", ""},
		{"no pod yet", []corev1.Pod{a}, "b has no pod", "b has no pod", ""},
		{"not started yet", []corev1.Pod{a, pod("b", corev1.PodPending, creating)},
			"b: pod kube-system/agent-b is Pending; container agent waits: ContainerCreating ",
			"b: pod kube-system/agent-b is Pending; container agent waits: ContainerCreating ", ""},
		{"of the template before", []corev1.Pod{a, with(pod("b", corev1.PodRunning, started), isOld)},
			"b has a pod of an older template", "b has a pod of an older template", ""},
		{"that the template before could not be pulled says nothing", []corev1.Pod{a, with(pod("b", corev1.PodPending, unpulled), isOld)},
			"b has a pod of an older template", "b has a pod of an older template", ""},
		{"on its way out", []corev1.Pod{a, with(with(pod("b", corev1.PodRunning, started), isReady), isGoing)},
			"b: pod kube-system/agent-b is Running and being deleted", "b: pod kube-system/agent-b is Running and being deleted", ""},
		{"two on a node", []corev1.Pod{a, pod("b", corev1.PodRunning, started), pod("b", corev1.PodRunning, started)},
			"b has 2 pods", "b has 2 pods", ""},
		{"a node that is not asked about", []corev1.Pod{a, with(pod("b", corev1.PodRunning, started), isReady), pod("gone", corev1.PodPending, unpulled)}, "", "", ""},
		{"no such image", []corev1.Pod{a, pod("b", corev1.PodPending, unpulled)},
			"b: pod kube-system/agent-b is Pending; container agent waits: ErrImagePull not found",
			"b: pod kube-system/agent-b is Pending; container agent waits: ErrImagePull not found",
			"node b cannot pull example.com/agent:v1 for container agent: ErrImagePull: not found"},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: "3"}}}
			for condition, want := range map[string]struct {
				holds   func(corev1.Pod) bool
				missing string
			}{"started": {Started, c.started}, "ready": {Ready, c.ready}} {
				missing, err := rollout(set, c.pods, []string{"a", "b"}, want.holds)
				must.Equal(t, condition, want.missing, strings.Join(missing, "; "))
				pulling := ""
				if err != nil {
					pulling = err.Error()
				}
				must.Equal(t, "error", c.pulling, pulling)
			}
		})
	}
}

func TestPodsAreNamedAsKubectlDoes(t *testing.T) {
	must.Equal(t, "", "kube-system/k8s-app=cilium", SystemDaemonSet("cilium").Pods.String())
}

// The harness dials the socket through the node, so that both have to name it alike.
func TestProbePodKeepsItsSocketOnItsNode(t *testing.T) {
	p := OnEach("node1")[0]
	made := probePod(p, true)
	must.Equal(t, "the pod and its node", [3]string{ProbeKey(p).Name, ProbeKey(p).Namespace, "node1"}, [3]string{made.Name, made.Namespace, made.Spec.NodeName})
	args := made.Spec.Containers[0].Args
	if args[len(args)-1] != ProbeSocket(p) || !strings.HasPrefix(ProbeSocket(p), made.Spec.Volumes[0].HostPath.Path+"/") {
		t.Errorf("the agent listens at %q, dialled is %q", args, ProbeSocket(p))
	}
}

// A pod that kubelet has refused for want of room is told apart from one that failed.
func TestRefused(t *testing.T) {
	for reason, want := range map[string]bool{"OutOfpods": true, "OutOfcpu": true, "Evicted": false, "": false} {
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe-edge1"},
			Status:     corev1.PodStatus{Phase: corev1.PodFailed, Reason: reason, Message: "capacity: 0"},
		}
		must.Equal(t, reason, want, refused(p))
		if says := DescribePod(p); reason != "" && says != "pod default/probe-edge1 is Failed: "+reason+": capacity: 0" {
			t.Errorf("%q: %s", reason, says)
		}
	}
}

// A container that ends again and again is told with its last words.
func TestDescribeCrashLoop(t *testing.T) {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-1"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning,
			InitContainerStatuses: []corev1.ContainerStatus{
				{Name: "config", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
			},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name:                 "cilium-agent",
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 10s"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "Usage:\n  cilium-agent [flags]\nunknown flag: --gone\n"}},
			}},
		},
	}
	want := "pod kube-system/cilium-1 is Running; container cilium-agent waits: CrashLoopBackOff back-off 10s; it ended with 1: unknown flag: --gone"
	must.Equal(t, "", want, DescribePod(p))
}

func TestLastWords(t *testing.T) {
	for log, want := range map[string]string{
		"level=info msg=starting\npanic: no\n":                            "panic: no",
		"Error: unknown flag: --gone\nUsage:\n  cilium-agent [flags]\n\n": "Error: unknown flag: --gone",
		"": "",
	} {
		must.Equal(t, log, want, lastWords(log))
	}
}

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
