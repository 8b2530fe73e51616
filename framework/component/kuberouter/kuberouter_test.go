package kuberouter

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
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/must"
)

var (
	oldDigest = "sha256:" + strings.Repeat("1", 64)
	newDigest = "sha256:" + strings.Repeat("2", 64)
)

// configured is a configuration with a lab's BGP.
func configured(vendors Manifest, image string, policy corev1.PullPolicy) KubeRouter {
	return KubeRouter{
		Manifest: vendors, Image: image, PullPolicy: policy,
		Router: netip.MustParseAddr("10.20.4.254"), RouterASN: 64524, ClusterASN: 64513,
		RestartTime: 18 * time.Second, CacheSyncTimeout: 12 * time.Second,
	}
}

// nodeOf is a node of three.
func nodeOf(name string) Node {
	last := slices.Index([]string{"master", "worker1", "worker2"}, name)
	return Node{Name: name, Address: netip.AddrFrom4([4]byte{10, 20, 4, byte(20 + last)})}
}

// objects decodes a manifest: a role's rules and the DaemonSet.
func objects(t *testing.T, k KubeRouter) (rbacv1.ClusterRole, appsv1.DaemonSet) {
	t.Helper()
	text, err := k.manifest(netip.MustParseAddrPort("10.20.4.11:6443"))
	must.NoError(t, err)
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
	role, set := objects(t, configured(V1, Untagged, corev1.PullAlways))
	spec := set.Spec.Template.Spec
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if c.Image != Untagged || c.ImagePullPolicy != corev1.PullAlways {
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

	k := configured(V1, Untagged, corev1.PullAlways)
	k.IBGP = true
	_, changed := objects(t, k)
	changed.Spec.Template.Spec.Containers[0].Args[4] = "--enable-ibgp=false"
	if diff := cmp.Diff(set, changed); diff != "" {
		t.Errorf("the operator changes more than the argument (-before +after):\n%s", diff)
	}

	k.IBGP, k.AtOnce = false, true
	_, atOnce := objects(t, k)
	if got := atOnce.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String(); got != "100%" {
		t.Errorf("at once, but %s may be unavailable", got)
	}
	atOnce.Spec.UpdateStrategy = set.Spec.UpdateStrategy
	if diff := cmp.Diff(set, atOnce); diff != "" {
		t.Errorf("at once is more than the strategy (-before +after):\n%s", diff)
	}

	role, set = objects(t, configured(V2, Untagged+"@"+newDigest, corev1.PullIfNotPresent))
	spec = set.Spec.Template.Spec
	if got := resourcesOf(role); !slices.Contains(got, "endpointslices") || !slices.Contains(got, "leases") {
		t.Errorf("v2's role allows %v", got)
	}
	if !strings.Contains(spec.InitContainers[0].Command[2], "cni-install") || !spec.HostPID || len(spec.Containers[0].Env) != 5 {
		t.Error("v2's manifest lacks parts")
	}
}

func TestManifestOfV0(t *testing.T) {
	role, set := objects(t, configured(V0, Untagged, corev1.PullAlways))
	spec := set.Spec.Template.Spec
	if got := spec.InitContainers[0].Image; got != "docker.io/library/busybox" {
		t.Errorf("the CNI configuration is installed by %s", got)
	}
	for _, arg := range spec.Containers[0].Args {
		// pkg/options/options.go of v0.4.0 and v1.0.0-rc5 do not have it.
		if strings.HasPrefix(arg, "--bgp-graceful-restart-time") {
			t.Error("v0.4.0 ends at " + arg)
		}
	}
	if slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == "xtables-lock" }) {
		t.Error("v0.4.0's manifest has no lock")
	}
	if got := resourcesOf(role); slices.Contains(got, "endpointslices") {
		t.Errorf("v0's role allows %v", got)
	}
}

// at is a snapshot of one node: its kube-router's pod and digest, and whether
// the ToR has a session and a route.
func at(second int, node, pod, digest, trouble string, session, route bool) snapshot.Snapshot {
	s := snapshot.Snapshot{Time: time.Unix(int64(second), 0)}
	if pod != "" {
		c := snapshot.RunningContainer{Container: snapshot.Container{Name: "kube-router", Image: Untagged}, Trouble: trouble}
		if digest != "" {
			c.ImageID = Untagged + "@" + digest
		}
		init := snapshot.RunningContainer{Container: snapshot.Container{Name: "install-cni", Init: true}}
		s.PodImages.Items = []snapshot.PodImages{
			{OwnerKind: "DaemonSet", OwnerName: "other", Node: node, UID: "other"},
			{OwnerKind: "DaemonSet", OwnerName: "kube-router", Node: node, UID: pod, Containers: []snapshot.RunningContainer{init, c}},
		}
	}
	tor := snapshot.Router{Name: "tor"}
	if session {
		tor.Neighbors.Items = []snapshot.Neighbor{{Address: nodeOf(node).Address, State: snapshot.SessionEstablished}}
	}
	if route {
		tor.Paths.Items = []snapshot.Path{{Neighbor: nodeOf(node).Address}}
	}
	s.Routers = []snapshot.Router{tor}
	return s
}

func TestChanges(t *testing.T) {
	well := at(1, "worker1", "a", oldDigest, "", true, true)
	for _, tt := range []struct {
		name          string
		before, after snapshot.Snapshot
		want          []string
	}{
		{"nothing", well, well, nil},
		{"the pod stops", well, at(2, "worker1", "", "", "", false, true), []string{"its kube-router pod was deleted", "its BGP session is lost"}},
		{"a new pod", at(1, "worker1", "", "", "", false, true), at(2, "worker1", "b", "", "", false, true), []string{"a new kube-router pod"}},
		{"it starts", at(1, "worker1", "b", "", "", false, true), at(2, "worker1", "b", newDigest, "", false, true), []string{"kube-router runs " + newDigest}},
		{"all at once", well, at(2, "worker1", "b", oldDigest, "", true, true), []string{"a new kube-router pod", "kube-router runs " + oldDigest}},
		{"the route goes", at(1, "worker1", "b", newDigest, "", false, true), at(2, "worker1", "b", newDigest, "", false, false), []string{"its route is dropped"}},
		{"it crashes", at(1, "worker1", "b", newDigest, "", false, false), at(2, "worker1", "b", newDigest, "ended with status 1", false, false), []string{"kube-router: ended with status 1"}},
		{"it comes back", at(1, "worker1", "b", newDigest, "", false, false), at(2, "worker1", "b", newDigest, "", true, true), []string{"its BGP session is up", "its route is installed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, e := range changes([]Node{nodeOf("worker1")}, tt.before, tt.after) {
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

func TestWatch(t *testing.T) {
	snapshots := make(chan snapshot.Snapshot, 3)
	now := at(1, "worker1", "a", oldDigest, "", true, true)
	var notes []string
	latest := func() snapshot.Snapshot {
		select {
		case now = <-snapshots:
		default:
		}
		return now
	}
	note := func(text string) { notes = append(notes, text) }
	events, err := Watch([]Node{nodeOf("worker1")}, latest, note, func() error {
		unread := at(2, "worker1", "", "", "", true, true)
		unread.Sources = []snapshot.Asked{{Name: snapshot.RunningImages.String()}}
		unread.PodImages.Error = "no answer"
		snapshots <- unread
		last := at(3, "worker1", "b", newDigest, "", true, true)
		last.Time = time.Now().Add(time.Hour)
		snapshots <- last
		return nil
	})
	want := []string{"worker1: a new kube-router pod", "worker1: kube-router runs " + newDigest}
	if diff := cmp.Diff(want, notes); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if len(events) != 2 {
		t.Errorf("got %v", events)
	}
}
