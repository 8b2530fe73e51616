package kuberouter

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

var newDigest = "sha256:" + strings.Repeat("2", 64)

func configured(vendors Manifest, image string, policy corev1.PullPolicy) KubeRouter {
	return KubeRouter{
		Manifest: vendors, Image: image, PullPolicy: policy,
		RestartTime: 18 * time.Second, CacheSyncTimeout: 12 * time.Second,
	}
}

// objects decodes a manifest: a role's rules and the DaemonSet.
func objects(t *testing.T, k KubeRouter) (rbacv1.ClusterRole, appsv1.DaemonSet) {
	t.Helper()
	text := must.Get(k.manifest(netip.MustParseAddrPort("10.20.4.11:6443"),
		topology.BGPPeer{Address: netip.MustParseAddr("10.20.4.254"), ASN: 64524, ClusterASN: 64513}))(t)
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
	must.Equal(t, "arguments", want, spec.Containers[0].Args)
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
	must.Equal(t, "the operator changes more than the argument", set, changed)

	k.IBGP, k.AtOnce = false, true
	_, atOnce := objects(t, k)
	must.Equal(t, "at once, but", "100%", atOnce.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String())
	atOnce.Spec.UpdateStrategy = set.Spec.UpdateStrategy
	must.Equal(t, "at once is more than the strategy", set, atOnce)

	role, set = objects(t, configured(V2, Untagged+"@"+newDigest, corev1.PullIfNotPresent))
	spec = set.Spec.Template.Spec
	if got := resourcesOf(role); !slices.Contains(got, "endpointslices") || !slices.Contains(got, "leases") {
		t.Errorf("v2's role allows %v", got)
	}
	if !strings.Contains(spec.InitContainers[0].Command[2], "cni-install") || !spec.HostPID || len(spec.Containers[0].Env) != 5 {
		t.Error("v2's manifest lacks parts")
	}
}
