package unpinnedimage

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/lab/registry"
	"github.com/relapse-dev/relapse/topology/lab/router"
)

var (
	oldDigest = "sha256:" + strings.Repeat("1", 64)
	newDigest = "sha256:" + strings.Repeat("2", 64)
)

// objects decodes a manifest: a role's rules and the DaemonSet.
func objects(t *testing.T, k kubeRouter) (rbacv1.ClusterRole, appsv1.DaemonSet) {
	t.Helper()
	text, err := k.manifest()
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	var set appsv1.DaemonSet
	for part := range strings.SplitSeq(text, "\n---\n") {
		var into any
		switch {
		case strings.Contains(part, "kind: ClusterRole\n"):
			into = &role
		case strings.Contains(part, "kind: DaemonSet\n"):
			into = &set
		default:
			into = &map[string]any{}
		}
		if err := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(part)), 4096).Decode(into); err != nil {
			t.Fatalf("%v in\n%s", err, part)
		}
	}
	return role, set
}

func resourcesOf(role rbacv1.ClusterRole) []string {
	var all []string
	for _, rule := range role.Rules {
		all = append(all, rule.Resources...)
	}
	return all
}

func TestManifest(t *testing.T) {
	role, set := objects(t, kubeRouter{Image: untagged, PullPolicy: corev1.PullAlways})
	spec := set.Spec.Template.Spec
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if c.Image != untagged || c.ImagePullPolicy != corev1.PullAlways {
			t.Errorf("container %s has %s and %s", c.Name, c.Image, c.ImagePullPolicy)
		}
	}
	want := []string{
		"--run-router=true", "--run-firewall=true", "--run-service-proxy=false", "--bgp-graceful-restart=true",
		"--enable-ibgp=false",
		"--cluster-asn=64513", "--peer-router-ips=10.20.4.254", "--peer-router-asns=64524",
		"--bgp-graceful-restart-time=18s", "--cache-sync-timeout=12s",
	}
	if diff := cmp.Diff(want, spec.Containers[0].Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	if got := resourcesOf(role); slices.Contains(got, "endpointslices") {
		t.Errorf("v1's role allows %v", got)
	}
	if strings.Contains(spec.InitContainers[0].Command[2], "cni-install") || spec.HostPID {
		t.Error("v1's manifest has parts of v2's")
	}

	_, changed := objects(t, kubeRouter{Image: untagged, PullPolicy: corev1.PullAlways, IBGP: true})
	changed.Spec.Template.Spec.Containers[0].Args[4] = "--enable-ibgp=false"
	if diff := cmp.Diff(set, changed); diff != "" {
		t.Errorf("the operator changes more than the argument (-before +after):\n%s", diff)
	}

	_, atOnce := objects(t, kubeRouter{Image: untagged, PullPolicy: corev1.PullAlways, AtOnce: true})
	if got := atOnce.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String(); got != "100%" {
		t.Errorf("at once, but %s may be unavailable", got)
	}
	atOnce.Spec.UpdateStrategy = set.Spec.UpdateStrategy
	if diff := cmp.Diff(set, atOnce); diff != "" {
		t.Errorf("at once is more than the strategy (-before +after):\n%s", diff)
	}

	role, set = objects(t, kubeRouter{Image: untagged + "@" + newDigest, PullPolicy: corev1.PullIfNotPresent, V2: true})
	spec = set.Spec.Template.Spec
	if got := resourcesOf(role); !slices.Contains(got, "endpointslices") || !slices.Contains(got, "leases") {
		t.Errorf("v2's role allows %v", got)
	}
	if !strings.Contains(spec.InitContainers[0].Command[2], "cni-install") || !spec.HostPID || len(spec.Containers[0].Env) != 5 {
		t.Error("v2's manifest lacks parts")
	}
}

func TestScenario(t *testing.T) {
	if err := lab.Validate(); err != nil {
		t.Error(err)
	}
	names := map[string]bool{}
	for _, n := range lab.Clusters[0].Nodes {
		names[n.Name] = true
	}
	for _, v := range Scenario.Variants {
		probes := map[string]bool{}
		for _, p := range v.Script.Probes {
			probes[p.From+"->"+p.To] = true
		}
		for _, h := range v.Script.Hurt {
			if !probes[h] {
				t.Errorf("%s: no probe %s", v.Name, h)
			}
		}
		for _, g := range v.Script.Gone {
			if !names[g] {
				t.Errorf("%s: no node %s", v.Name, g)
			}
			if slices.ContainsFunc(v.Script.Hurt, func(h string) bool { return strings.Contains(h, g) }) {
				t.Errorf("%s: a probe of %s, which is gone, cannot be hurt", v.Name, g)
			}
		}
	}
	if last := lab.Clusters[0].Nodes[len(all)-1].Name; last != newcomer {
		t.Errorf("only the newest node gets its pod range back: that is %s, and not %s", last, newcomer)
	}
}

// addr is a node's address.
func addr(t *testing.T, node string) netip.Addr {
	a, ok := lab.AddressOn(node, "nodes")
	if !ok {
		t.Fatalf("no node %s", node)
	}
	return a
}

func TestUndecided(t *testing.T) {
	session := func(node, state string) router.Neighbor { return router.Neighbor{Address: addr(t, node), State: state} }
	path := func(node string) router.Path { return router.Path{Neighbor: addr(t, node)} }
	const up = router.StateEstablished
	for _, tt := range []struct {
		name      string
		neighbors []router.Neighbor
		paths     []router.Path
		want      []string
	}{
		{"all are up", []router.Neighbor{session("master", up), session("worker1", up), session("worker2", up)}, []router.Path{path("master"), path("worker1"), path("worker2")}, nil},
		{"all are gone", nil, nil, nil},
		{"one is kept while it restarts", []router.Neighbor{session("master", up), session("worker1", "active")}, []router.Path{path("master"), path("worker1")}, []string{"worker1"}},
		{"one dials, and has nothing", []router.Neighbor{session("worker2", "openconfirm")}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := undecided(tt.neighbors, tt.paths); !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestPullError(t *testing.T) {
	waiting := func(reason, message string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{
			Name: "kube-router", Image: untagged,
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
			err := pullError([]corev1.Pod{fine, pod(waiting(tt.reason, tt.message))})
			if (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
	if err := pullError([]corev1.Pod{{Spec: corev1.PodSpec{NodeName: "worker1"}, Status: corev1.PodStatus{InitContainerStatuses: waiting("ErrImagePull", "")}}}); err == nil {
		t.Error("an init container that cannot be pulled is passed over")
	}
}

// at is a snapshot of one node: its kube-router's pod and digest, and whether
// the ToR has a session and a route.
func at(t *testing.T, second int, node, pod, digest, trouble string, session, route bool) snapshot.Snapshot {
	s := snapshot.Snapshot{Time: time.Unix(int64(second), 0)}
	if pod != "" {
		c := snapshot.RunningContainer{Container: snapshot.Container{Name: "kube-router", Image: untagged}, Trouble: trouble}
		if digest != "" {
			c.ImageID = untagged + "@" + digest
		}
		init := snapshot.RunningContainer{Container: snapshot.Container{Name: "install-cni", Init: true}}
		s.PodImages.Items = []snapshot.PodImages{
			{OwnerKind: "DaemonSet", OwnerName: "other", Node: node, UID: "other"},
			{OwnerKind: "DaemonSet", OwnerName: "kube-router", Node: node, UID: pod, Containers: []snapshot.RunningContainer{init, c}},
		}
	}
	tor := snapshot.Router{Name: "tor"}
	if session {
		tor.Neighbors.Items = []snapshot.Neighbor{{Address: addr(t, node), State: router.StateEstablished}}
	}
	if route {
		tor.Paths.Items = []snapshot.Path{{Neighbor: addr(t, node)}}
	}
	s.Routers = []snapshot.Router{tor}
	return s
}

func TestChanges(t *testing.T) {
	well := at(t, 1, "worker1", "a", oldDigest, "", true, true)
	for _, tt := range []struct {
		name          string
		before, after snapshot.Snapshot
		want          []string
	}{
		{"nothing", well, well, nil},
		{"the pod stops", well, at(t, 2, "worker1", "", "", "", false, true), []string{"its kube-router pod is gone", "tor has lost the session"}},
		{"a new pod", at(t, 1, "worker1", "", "", "", false, true), at(t, 2, "worker1", "b", "", "", false, true), []string{"a new kube-router pod"}},
		{"it starts", at(t, 1, "worker1", "b", "", "", false, true), at(t, 2, "worker1", "b", newDigest, "", false, true), []string{"kube-router runs " + newDigest}},
		{"all at once", well, at(t, 2, "worker1", "b", oldDigest, "", true, true), []string{"a new kube-router pod", "kube-router runs " + oldDigest}},
		{"the route goes", at(t, 1, "worker1", "b", newDigest, "", false, true), at(t, 2, "worker1", "b", newDigest, "", false, false), []string{"tor has dropped the route"}},
		{"it crashes", at(t, 1, "worker1", "b", newDigest, "", false, false), at(t, 2, "worker1", "b", newDigest, "ended with status 1", false, false), []string{"kube-router: ended with status 1"}},
		{"it comes back", at(t, 1, "worker1", "b", newDigest, "", false, false), at(t, 2, "worker1", "b", newDigest, "", true, true), []string{"tor has a session", "tor has a route"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, e := range changes(tt.before, tt.after) {
				got = append(got, e.What)
				if e.Node != "worker1" || !e.Time.Equal(tt.after.Time) {
					t.Errorf("%+v", e)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTell(t *testing.T) {
	snapshots := make(chan snapshot.Snapshot, 3)
	now := at(t, 1, "worker1", "a", oldDigest, "", true, true)
	var notes []string
	var kept any
	run := &framework.Run{
		Snapshot: func() snapshot.Snapshot {
			select {
			case now = <-snapshots:
			default:
			}
			return now
		},
		Note:     func(text string) { notes = append(notes, text) },
		Evidence: func(_ string, v any) { kept = v },
	}
	err := tell(run, "test", func() error {
		unread := at(t, 2, "worker1", "", "", "", true, true)
		unread.Sources = []snapshot.Asked{{Name: snapshot.RunningImages.String()}}
		unread.PodImages.Error = "no answer"
		snapshots <- unread
		last := at(t, 3, "worker1", "b", newDigest, "", true, true)
		last.Time = time.Now().Add(time.Hour)
		snapshots <- last
		return nil
	})
	want := []string{"worker1: a new kube-router pod", "worker1: kube-router runs " + newDigest}
	if diff := cmp.Diff(want, notes); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if events, ok := kept.([]event); !ok || len(events) != 2 {
		t.Errorf("kept %v", kept)
	}
}

// pull is a line of the registry's record.
func pull(t *testing.T, node, reference, digest string) registry.Pull {
	return registry.Pull{Client: addr(t, node), Image: untagged, Reference: reference, Digest: digest}
}

func TestGiven(t *testing.T) {
	pulls := []registry.Pull{
		pull(t, "master", "latest", oldDigest), pull(t, "master", "latest", newDigest),
		pull(t, "worker1", newDigest, newDigest), // it asked for that one
		pull(t, "worker2", "latest", ""),
	}
	if got, want := given(pulls, newDigest), []string{"master"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNotByDigest(t *testing.T) {
	pulls := []registry.Pull{pull(t, "master", oldDigest, oldDigest), pull(t, "worker1", oldDigest, ""), pull(t, "worker2", oldDigest, "")}
	if wrong := notByDigest(pulls, oldDigest); len(wrong) > 0 {
		t.Error(wrong)
	}
	pulls = append(pulls[:2:2], pull(t, "worker1", "latest", newDigest))
	want := []string{"worker1 has asked for latest", "worker2 has asked for nothing"}
	if got := notByDigest(pulls, oldDigest); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

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
	}, began)
	if len(got) != 2 || got[0].Node != "master" || got[0].TookMS != 1250 || got[1].Node != "worker1" || got[1].TookMS != 612 {
		t.Errorf("%+v", got)
	}
}

// looked makes a run whose detectors have just seen a snapshot.
func looked(at snapshot.Snapshot, found ...detect.Finding) *framework.Run {
	return &framework.Run{
		Snapshot: func() snapshot.Snapshot { return at },
		Findings: func() []detect.Finding { return found },
	}
}

func TestNodesRun(t *testing.T) {
	s := at(t, 1, "worker1", "a", oldDigest, "", true, true)
	if holds, saw, _ := nodesRun(s, []string{"worker1"}, oldDigest); !holds {
		t.Error(saw)
	}
	if holds, saw, _ := nodesRun(s, []string{"worker1", "worker2"}, oldDigest); holds || !strings.HasPrefix(saw, `worker2 runs ""`) {
		t.Errorf("%v, %s", holds, saw)
	}
}

func TestNoPodRange(t *testing.T) {
	routes := func(prefixes ...string) snapshot.Snapshot {
		tor := snapshot.Router{Name: "tor"}
		tor.Routes.Read = true
		for _, p := range prefixes {
			tor.Routes.Items = append(tor.Routes.Items, snapshot.Route{Prefix: netip.MustParsePrefix(p)})
		}
		return snapshot.Snapshot{Routers: []snapshot.Router{tor}}
	}
	for _, tt := range []struct {
		name  string
		at    snapshot.Snapshot
		holds bool
	}{
		{"links and guard only", routes("10.20.4.0/24", "0.0.0.0/0"), true},
		{"one is left", routes("10.20.65.0/24"), false},
		{"the ToR was not read", snapshot.Snapshot{Routers: []snapshot.Router{{Name: "tor"}}}, false},
		{"no snapshot", snapshot.Snapshot{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if holds, saw, _ := noPodRange(t.Context(), looked(tt.at)); holds != tt.holds {
				t.Errorf("%v, %s", holds, saw)
			}
		})
	}
}

func TestUnpinnedIsReported(t *testing.T) {
	found := func(object string) detect.Finding {
		return detect.Finding{Kind: detect.Untagged, State: detect.Latent, Object: detect.Named(object)}
	}
	if holds, saw, _ := unpinnedIsReported(t.Context(), looked(snapshot.Snapshot{}, found(agent), found(installer))); !holds {
		t.Error(saw)
	}
	if holds, saw, _ := unpinnedIsReported(t.Context(), looked(snapshot.Snapshot{}, found(agent))); holds || !strings.Contains(saw, installer) {
		t.Errorf("%v, %s", holds, saw)
	}
}
