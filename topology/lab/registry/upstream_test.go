package registry

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
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
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("error %v, want %s", err, tt.says)
				}
				return
			}
			if err != nil || u["docker.io"] != tt.want || u["quay.io"] != "https://quay.io" {
				t.Errorf("%v, %v", u, err)
			}
		})
	}
	if own["docker.io"] != "https://registry-1.docker.io" {
		t.Error("the vendors' own were changed")
	}
}

func TestHostOf(t *testing.T) {
	for image, want := range map[string]string{
		"busybox": "docker.io", "cloudnativelabs/kube-router:v0.4.0": "docker.io", "docker.io/library/busybox:1": "docker.io",
		"quay.io/cilium/cilium:v1.11.6": "quay.io", "relapse.dev/probe:dev": "relapse.dev",
	} {
		if got, err := HostOf(image); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", image, got, err, want)
		}
	}
	if _, err := HostOf("Not A Name"); err == nil {
		t.Error("no error")
	}
}

func TestReach(t *testing.T) {
	asks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(asks.Close)
	u := Upstreams{"docker.io": asks.URL, "quay.io": "http://127.0.0.1:1"} // no program listens on the port of tcpmux
	if err := u.Reach(t.Context(), []string{"docker.io"}); err != nil {
		t.Error(err)
	}
	err := u.Reach(t.Context(), u.Hosts())
	var unreachable *UpstreamError
	if !errors.As(err, &unreachable) || unreachable.Host != "quay.io" {
		t.Fatalf("error %v", err)
	}
	const want = "the registry of quay.io, http://127.0.0.1:1, cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused: " +
		"set a mirror with --upstream quay.io=URL, or run without --images=upstream"
	if err.Error() != want {
		t.Errorf("%s\nwant %s", err, want)
	}
}

// hanging listens, and never answers.
func hanging(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return "http://" + listener.Addr().String()
}

func TestAsk(t *testing.T) {
	addr, c := serve(t)
	served, index := push(t, c, "registry.k8s.io/pause:3.10", false), push(t, c, "registry.k8s.io/etcd:3", true)
	const none = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	lies := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			w.Header().Set("Docker-Content-Digest", served)
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Content-Length", "2")
		}
	}))
	t.Cleanup(lies.Close)
	answers := func(status int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(s.Close)
		return s.URL
	}
	const image = "registry.k8s.io/pause:3.10"
	for name, test := range map[string]struct {
		url, digest string
		want        string // empty: it is served
		silent      bool   // the registry does not answer at all
	}{
		"served":          {"http://" + addr, served, "", false},
		"another digest":  {"http://" + addr, none, "it answers 404 Not Found to a request for the pinned digest", false},
		"it lies":         {lies.URL, none, "does not match requested digest", false},
		"a login":         {answers(http.StatusUnauthorized), served, "it answers 401 Unauthorized", false},
		"it fails":        {answers(http.StatusServiceUnavailable), served, "it answers 503 Service Unavailable", false},
		"it refuses":      {"http://127.0.0.1:1", served, "connection refused", true},
		"it hangs":        {hanging(t), served, "no answer within 3s", true},
		"no such machine": {"http://registry.invalid", served, "registry.invalid", true},
		"no upstream":     {"", served, "no upstream for registry.k8s.io", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := Upstreams{"registry.k8s.io": test.url}
			began := time.Now()
			refused := u.Ask(t.Context(), map[string]string{image: test.digest})
			if took := time.Since(began); took > AskWithin+time.Second {
				t.Errorf("it took %s", took)
			}
			if test.want == "" {
				if len(refused) > 0 {
					t.Errorf("refused: %v", refused)
				}
				return
			}
			err := refused[image]
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want %s", err, test.want)
			}
			var vendor *UpstreamError
			if answered := !errors.As(err, &vendor) || vendor.Image != ""; answered == test.silent {
				t.Errorf("%v: does the registry answer? %t", err, answered)
			}
		})
	}
	t.Run("several at once", func(t *testing.T) {
		t.Parallel()
		u := Upstreams{"registry.k8s.io": "http://" + addr, "quay.io": hanging(t), "docker.io": hanging(t)}
		began := time.Now()
		refused := u.Ask(t.Context(), map[string]string{image: served, "registry.k8s.io/etcd:3": index, "quay.io/a:1": served, "quay.io/b:1": served, "c:1": served})
		if took := time.Since(began); took > AskWithin+time.Second {
			t.Errorf("it took %s", took)
		}
		if len(refused) != 3 || refused["quay.io/a:1"] == nil || refused["quay.io/b:1"] == nil || refused["c:1"] == nil {
			t.Errorf("%v", refused)
		}
	})
	t.Run("none", func(t *testing.T) {
		if refused := (Upstreams{}).Ask(t.Context(), nil); len(refused) > 0 {
			t.Errorf("%v", refused)
		}
	})
}

func TestDigest(t *testing.T) {
	addr, c := serve(t)
	want := push(t, c, "registry.k8s.io/pause:3.10", true)
	u := Upstreams{"registry.k8s.io": "http://" + addr, "quay.io": "http://127.0.0.1:1"}
	if got, err := u.Digest(t.Context(), "registry.k8s.io/pause:3.10"); err != nil || got.String() != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
	const says = "http://127.0.0.1:1 does not serve image quay.io/x:1: dial tcp 127.0.0.1:1: connect: connection refused: set a mirror with --upstream quay.io=URL"
	var vendor *UpstreamError
	if _, err := u.Digest(t.Context(), "quay.io/x:1"); !errors.As(err, &vendor) || err.Error() != says {
		t.Errorf("%v, want %s", err, says)
	}
}
