package cilium

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/relapse-dev/relapse/topology/must"
)

// The last lines of agents' logs.
const (
	bothKeys = ` level=fatal msg="Failed to populate masquerading settings" error="--enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive" subsys=config`
	noCIDR   = ` level=fatal msg="Error while creating daemon" error="invalid daemon configuration: native routing cidr must be configured with option --ipv4-native-routing-cidr" subsys=daemon`
	// Written by a slice: what it lacks, a silent API server, a compiler, iptables' lock.
	lacks    = ` level=fatal msg="Unable to start" error="the slice needs tunnel: \"disabled\"" relapse.dev/end=slice subsys=slice`
	silent   = ` level=fatal msg="Unable to start" error="initializing the Kubernetes subsystem: unable to create k8s client: Get \"https://10.4.94.1:6443/api\": dial tcp 10.4.94.1:6443: i/o timeout" relapse.dev/end=slice subsys=slice`
	compiler = ` level=fatal msg="Unable to start" error="attaching BPF programs: compiling bpf_host.c: Failed to compile bpf_host.o: signal: killed" relapse.dev/end=slice subsys=slice`
	locked   = ` level=fatal msg="Unable to start" error="installing iptables rules: cannot add custom chain CILIUM_INPUT: exit status 4" relapse.dev/end=slice subsys=slice`
	detached = ` level=fatal msg="Unable to go on" error="tcbpf [bpf_netdev_eth0.o eth0 10.20.30.0/27] ended: exit status 1" relapse.dev/end=slice subsys=slice`
	// Written by the vendor's code, for the same reasons.
	noFolder = ` level=fatal msg="Non-existent configuration directory /tmp/cilium/config-map" subsys=config`
	giveUp   = ` level=fatal msg="Unable to derive PodCIDR via Node or CiliumNode resource, giving up" subsys=k8s`

	hello = ` level=info msg="Cilium 1.11.1, agent slice" subsys=slice`
	wired = ` level=info msg="Pods are wired by the CNI plugins ptp and host-local" subsys=slice`
)

func at(second, line string) string { return "2026-11-23T10:00:" + second + ".5Z" + line + "\n" }

// agent is the agent of node1, whose newest container runs or waits for its next start.
func agent(running bool, before, text string) AgentLog {
	a := AgentLog{Text: text, Before: before}
	a.Pod.UID = types.UID("1")
	a.Pod.Spec.Containers = []corev1.Container{{Name: "cilium-agent"}}
	state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	if running {
		state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	}
	a.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "cilium-agent", State: state}}
	return a
}

// An agent refuses if the vendor's code says so twice in a row. Any other end is an error: the verdict is unknown.
func TestRefusals(t *testing.T) {
	const refuses, running = "node1: Failed to populate masquerading settings: --enable-ipv4-masquerade and --masquerade (deprecated) are mutually exclusive", true
	for _, test := range []struct {
		name    string
		polls   []AgentLog // one after the other; want is for the last one
		said    string
		pending string // a part
		fails   string // a part
	}{
		{"it works", []AgentLog{agent(running, "", at("01", hello)+at("02", wired))}, "", "", ""},
		{"it starts", []AgentLog{agent(running, "", at("01", hello))}, "", "agent slice", ""},
		{"it refuses once", []AgentLog{agent(running, "", at("01", bothKeys))}, "", "it has refused once", ""},
		{"the same start again", []AgentLog{agent(running, "", at("01", bothKeys)), agent(false, "", at("01", bothKeys)), agent(running, at("01", bothKeys), at("01", bothKeys))}, "", "it has refused once", ""},
		{"two starts, in one poll", []AgentLog{agent(running, at("01", bothKeys), at("04", hello)+at("05", bothKeys))}, refuses, "", ""},
		{"two starts, one seen before", []AgentLog{agent(false, "", at("01", bothKeys)), agent(false, "", at("05", bothKeys))}, refuses, "", ""},
		{"it waits for its third start", []AgentLog{agent(running, at("01", bothKeys), at("05", bothKeys)), agent(false, "", at("05", bothKeys))}, refuses, "", ""},
		{"two other reasons", []AgentLog{agent(running, at("01", noCIDR), at("05", bothKeys))}, "", "it has refused once", ""},
		{"the environment in between", []AgentLog{agent(false, "", at("01", bothKeys)), agent(false, "", at("05", giveUp)), agent(false, "", at("16", bothKeys))}, "", "it has refused once", ""},
		{"it refused, and works now", []AgentLog{agent(running, at("01", bothKeys), at("04", hello)+at("05", wired))}, "", "", ""},
		{"it refused, and starts now", []AgentLog{agent(running, at("01", bothKeys), at("04", hello))}, "", "agent slice", ""},
		{"it ended without a word", []AgentLog{agent(false, "", at("01", hello))}, "", "not said why", ""},
		{"it ended after its start", []AgentLog{agent(false, "", at("01", wired)+at("02", bothKeys))}, "", "", "after it had started"},
		{"the slice lacks a part", []AgentLog{agent(running, at("01", lacks), at("05", lacks))}, "", "", "the slice needs tunnel"},
		{"a silent API server", []AgentLog{agent(running, at("01", silent), at("05", silent))}, "", "", "i/o timeout"},
		{"a compiler that fails", []AgentLog{agent(running, at("01", compiler), at("05", compiler))}, "", "", "compiling bpf_host.c"},
		{"iptables' lock", []AgentLog{agent(running, at("01", locked), at("05", locked))}, "", "", "exit status 4"},
		{"programs without their maps", []AgentLog{agent(false, "", at("01", wired)+at("02", detached))}, "", "", "Unable to go on"},
		{"no folder of its configuration", []AgentLog{agent(running, at("01", noFolder), at("05", noFolder))}, "", "", "Non-existent configuration directory"},
		{"the vendor gives up", []AgentLog{agent(running, at("01", giveUp), at("05", giveUp))}, "", "", "the environment's"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var starts Starts
			var said, pending string
			var err error
			for _, a := range test.polls {
				said, pending, err = starts.refusals([]string{"node1"}, map[string]AgentLog{"node1": a})
			}
			if said != test.said || (pending == "") != (test.pending == "") || !strings.Contains(pending, test.pending) {
				t.Errorf("said %q, pending %q; want %q, %q", said, pending, test.said, test.pending)
			}
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("error %v, want %q", err, test.fails)
			}
		})
	}
}

// An agent that runs on one node and refuses on another has a reason in the node. A node without one proves nothing.
func TestRefusalsOfOneNode(t *testing.T) {
	var starts Starts
	runs, refuses := agent(true, "", at("01", hello)+at("02", wired)), agent(true, at("01", bothKeys), at("05", bothKeys))
	refuses.Pod.UID = "2"
	_, _, err := starts.refusals([]string{"node1", "node2"}, map[string]AgentLog{"node1": runs, "node2": refuses})
	must.Fail(t, err, "runs on node1, and refuses to start on another node: node2: ")
	_, pending, _ := starts.refusals([]string{"node1"}, nil)
	must.Equal(t, "pending", "node1 has no such agent", pending)
}
