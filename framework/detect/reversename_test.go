package detect

import (
	"testing"

	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestReverseName(t *testing.T) {
	for _, tt := range []struct {
		name, image string
		unnamed     int
		says        string
	}{
		{"the vendor's image", "registry.k8s.io/coredns/coredns:v1.12.0", 2,
			"CoreDNS 1.12.0 answers NXDOMAIN for the addresses of endpoints without a hostname: 2 of default/directory. Programs that ask for the name of an address, such as Kerberos, are refused."},
		{"a distribution's image", "docker.io/rancher/hardened-coredns:v1.11.4-build20250110", 1,
			"CoreDNS 1.11.4 answers NXDOMAIN for the addresses of endpoints without a hostname: 1 of default/directory. Programs that ask for the name of an address, such as Kerberos, are refused."},
		{name: "a version before", image: "registry.k8s.io/coredns/coredns:v1.11.3", unnamed: 2},
		{name: "the version that mends it", image: "registry.k8s.io/coredns/coredns:v1.12.1", unnamed: 2},
		{name: "all endpoints have hostnames", image: "registry.k8s.io/coredns/coredns:v1.12.0"},
		{name: "another program", image: "registry.example/proxy:v1.12.0", unnamed: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found := Run([]Detector{ReverseName{}}, []snapshot.Snapshot{{
				EndpointSlices: snapshot.List[snapshot.EndpointSlice]{Read: true, Items: []snapshot.EndpointSlice{{Namespace: "default", Service: "directory", Unnamed: tt.unnamed}}},
				PodImages: snapshot.List[snapshot.PodImages]{Read: true, Items: []snapshot.PodImages{{Namespace: "kube-system", Name: "coredns-1",
					Containers: []snapshot.RunningContainer{{Container: snapshot.Container{Image: tt.image}}}}}},
			}})
			must.Equal(t, "found", tt.says, each.Joined(found, "\n", sentenceOf))
		})
	}
}
