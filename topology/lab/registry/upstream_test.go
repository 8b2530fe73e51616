package registry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

func TestNewUpstreams(t *testing.T) {
	for _, tt := range []struct {
		name    string
		instead map[string]string
		want    string // docker.io's
		says    string // of the error; empty: fine
	}{
		{"the vendors' own", nil, "https://registry-1.docker.io", ""},
		{"a mirror", map[string]string{"docker.io": "http://10.0.0.1:5000/"}, "http://10.0.0.1:5000", ""},
		{"no vendor", map[string]string{"docker.oi": "http://10.0.0.1"}, "", `unknown vendor's host "docker.oi"; expected one of docker.io, gcr.io, quay.io, registry.k8s.io`},
		{"no URL", map[string]string{"docker.io": "mirror:5000"}, "", `docker.io: "mirror:5000" is not the URL of a registry such as https://mirror.example:5000`},
		{"a path, which no registry has", map[string]string{"docker.io": "https://mirror/hub"}, "", `"https://mirror/hub" is not the URL`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, err := NewUpstreams(tt.instead)
			if tt.says != "" {
				must.Fail(t, err, tt.says)
				return
			}
			if err != nil || u["docker.io"] != tt.want || u["quay.io"] != "https://quay.io" {
				t.Errorf("%v, %v", u, err)
			}
		})
	}
	must.Equal(t, "the vendors' own were changed", "https://registry-1.docker.io", own["docker.io"])
}

func TestHostOf(t *testing.T) {
	for image, want := range map[string]string{
		"busybox": "docker.io", "cloudnativelabs/kube-router:v0.4.0": "docker.io", "docker.io/library/busybox:1": "docker.io",
		"quay.io/cilium/cilium:v1.11.6": "quay.io", "relapse.dev/probe:dev": "relapse.dev",
	} {
		must.Equal(t, image, want, must.Get(HostOf(image))(t))
	}
	must.Fail(t, must.Err(HostOf("Not A Name")))
}

func TestReach(t *testing.T) {
	asks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(asks.Close)
	u := Upstreams{"docker.io": asks.URL, "quay.io": "http://127.0.0.1:1"} // no program listens on the port of tcpmux
	must.NoError(t, u.Reach(t.Context(), []string{"docker.io"}))
	err := u.Reach(t.Context(), u.Hosts())
	const want = "the registry of quay.io, http://127.0.0.1:1, cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused: " +
		"set a mirror with --upstream quay.io=URL, or run without --images=upstream"
	must.Equal(t, "", want, fmt.Sprint(err))
}
