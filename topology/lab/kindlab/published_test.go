package kindlab

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// A lab says which images of its cluster are the vendors' own, and no run with others takes it.
func TestPublished(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root writes the state of a lab")
	}
	const name, pause, apiserver, dns = "unit-test-published", "registry.k8s.io/pause:3.10", "registry.k8s.io/kube-apiserver:v1.34.4", "registry.k8s.io/coredns/coredns:v1.12.1"
	if _, up, err := Published(name); up || err != nil {
		t.Fatalf("a lab that is not up: %t, %v", up, err)
	}
	if err := os.MkdirAll(stateDir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(stateDir(name)) })
	with := func(published map[string]string, upstreams registry.Upstreams) *Lab {
		return &Lab{Topology: topology.Topology{Name: name}, options: Options{Published: published, Upstreams: upstreams}}
	}
	one := with(map[string]string{pause: "sha256:1", apiserver: "sha256:2", dns: "sha256:3"}, nil)
	another := with(map[string]string{pause: "sha256:9", apiserver: "sha256:2"}, nil)
	built := with(map[string]string{dns: "sha256:3"}, nil) // not of the cluster itself
	upstream := with(nil, registry.Upstreams{"docker.io": "http://127.0.0.1"})
	for _, test := range []struct {
		was   *Lab
		taken []string
	}{{one, []string{apiserver, pause}}, {built, nil}, {upstream, nil}} {
		if err := os.WriteFile(test.was.sourceFile(), []byte(test.was.source()), 0o600); err != nil {
			t.Fatal(err)
		}
		if taken, up, err := Published(name); !up || err != nil || !slices.Equal(taken, test.taken) {
			t.Errorf("%q: %v, %t, %v, want %v", test.was.source(), taken, up, err, test.taken)
		}
		for _, l := range []*Lab{one, another, built, upstream} {
			if err := l.checkSource(); (err == nil) != (l == test.was) {
				t.Errorf("a run with %q on a lab with %q: %v", l.source(), test.was.source(), err)
			} else if err != nil && !strings.Contains(err.Error(), "take it down, or run without --reuse") {
				t.Error(err)
			}
		}
	}
}
