package images

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestRangesAndPreReleases(t *testing.T) {
	for _, test := range []struct {
		from, below  string
		inRange, out []string
	}{
		{"1.12.0", "1.13.0", []string{"1.12.0-rc0", "1.12.0", "1.12.19", "1.12.3-rc1"}, []string{"1.11.20", "1.13.0-rc0", "1.13.0", "", "1.12.x"}},
		{"1.12.0-rc0", "1.12.0-rc1", []string{"1.12.0-rc0"}, []string{"1.12.0-rc1", "1.12.0", "1.11.6"}},
		{"1.12.0-rc3", "1.13.0", []string{"1.12.0-rc3", "1.12.0"}, []string{"1.12.0-rc2", "1.13.0-rc0"}},
	} {
		r := versions{From: test.from, Below: test.below}
		for _, v := range test.inRange {
			must.Equal(t, v, true, r.contain(v))
		}
		for _, v := range test.out {
			must.Equal(t, v, false, r.contain(v))
		}
	}
}

func TestReleases(t *testing.T) {
	vendorProxy(t)
	c := open(t, newRoot(t, with(vendored, "v/releases.txt", "# all of them\n1.0.0 1.2.0-rc1 1.1.1 # and\n\n2.1.0\n")))
	mustBuild(t, c, must.Get(c.Find(Want{Component: "v", Version: "1.1.1"}))(t)...)
	want := Releases{
		Ways: []Way{{Image: "x.dev/v", Form: Slice, From: "1.0.0", Below: "2.0.0", Unlisted: []string{"x.dev/vendor"}}},
		Versions: []Release{
			{Version: "1.0.0", Images: []string{"x.dev/v:1.0.0"}},
			{Version: "1.1.1", Images: []string{"x.dev/v:1.1.1"}, Built: []string{"x.dev/v:1.1.1"}},
			{Version: "1.2.0-rc1", Images: []string{"x.dev/v:1.2.0-rc1"}},
			{Version: "2.1.0"}, // the vendor's, and in no recipe's range
		},
	}
	got := must.Get(c.Releases(t.Context(), "v"))(t)
	must.Fail(t, got.Refused["x.dev/vendor"]) // the proxy of the test serves versions and no list of them
	got.Refused = nil
	must.Equal(t, "", want, got)

	t.Run("with the proxy's list", func(t *testing.T) {
		must.Write(t, filepath.Join(strings.TrimPrefix(os.Getenv("GOPROXY"), "file://"), "x.dev/vendor/@v/list"), "v1.0.0\nv1.1.0\nv1.1.1\n")
		got := must.Get(c.Releases(t.Context(), "v"))(t)
		must.NoError(t, got.Refused["x.dev/vendor"])
		names := each.Of(got.Versions, func(r Release) string { return r.Version })
		must.Equal(t, "", []string{"1.0.0", "1.1.0", "1.1.1", "1.2.0-rc1", "2.1.0"}, names)
	})
	unknown := must.Err(c.Releases(t.Context(), "w"))
	must.Equal(t, unknown, true, errors.As(unknown, new(*UnknownVersionError)))
	must.Fail(t, unknown, `no recipe builds a component "w"; there are v`)
	misspelt := open(t, newRoot(t, with(vendored, "v/releases.txt", "1.0.0\n1.0.x\n")))
	must.Fail(t, must.Err(misspelt.Releases(t.Context(), "v")),
		`v/releases.txt:2: "1.0.x": expected a version such as 1.11.0 or 1.12.0-rc1`)
}

// The errors tell a version that the proxy lacks from a proxy that cannot be reached.
func TestNotPublished(t *testing.T) {
	vendorProxy(t)
	c := open(t, newRoot(t, vendored))
	refs := must.Get(c.Find(Want{Component: "v", Version: "1.9.0"}))(t)
	var missing *NotPublishedError
	// A proxy in a folder says otherwise: no such file.
	must.Equal(t, "it is told", false, errors.As(must.Err(c.Build(t.Context(), refs, nil)), &missing))
	v := module.Version{Path: "x.dev/vendor", Version: "v1.9.0"}
	for _, test := range []struct{ name, says, want string }{
		{"refused", "go list: exit status 1: go: x.dev/vendor@v1.9.0: reading https://proxy/x.dev/vendor/@v/v1.9.0.info: 403 Forbidden\n\tserver response: no",
			"x.dev/vendor@v1.9.0 is not published: x.dev/vendor@v1.9.0: reading https://proxy/x.dev/vendor/@v/v1.9.0.info: 403 Forbidden"},
		{"something that it requires", "go: x.dev/other@v0.1.0: reading https://proxy/x.dev/other/@v/v0.1.0.mod: 404 Not Found",
			"x.dev/other@v0.1.0, which x.dev/vendor@v1.9.0 requires, is not published: go: x.dev/other@v0.1.0: reading https://proxy/x.dev/other/@v/v0.1.0.mod: 404 Not Found"},
		{"what it downloads before",
			"resolving what x.dev/vendor@v1.9.0 requires: go list: exit status 1: go: downloading x.dev/vendor v1.9.0\ngo: x.dev/vendor@v1.9.0 requires\n\tx.dev/b@v1.0.0 requires\n\tx.dev/other@v0.1.0: reading https://proxy/x.dev/other/@v/v0.1.0.mod: 403 Forbidden",
			"x.dev/other@v0.1.0, which x.dev/vendor@v1.9.0 requires, is not published: x.dev/other@v0.1.0: reading https://proxy/x.dev/other/@v/v0.1.0.mod: 403 Forbidden"},
		{"a checksum database that has not got it",
			"resolving what x.dev/vendor@v1.9.0 requires: go list: exit status 1: x.dev/vendor@v1.9.0: verifying module: x.dev/vendor@v1.9.0: reading https://proxy/sumdb/sum.dev/lookup/x.dev/vendor@v1.9.0: 404 Not Found",
			"x.dev/vendor@v1.9.0 is not in Go's checksum database, which would show that it is what others get; GONOSUMDB=x.dev/vendor in the environment takes it all the same"},
		{"a checksum database that has not got what it requires",
			"go: x.dev/Other@v0.1.0: verifying go.mod: x.dev/Other@v0.1.0/go.mod: reading https://proxy/sumdb/sum.dev/lookup/x.dev/!other@v0.1.0: 404 Not Found",
			"x.dev/Other@v0.1.0, which x.dev/vendor@v1.9.0 requires, is not in Go's checksum database, which would show that it is what others get; GONOSUMDB=x.dev/Other in the environment takes it all the same"},
		{"no network", "go list: exit status 1: go: x.dev/vendor@v1.9.0: Get \"https://proxy/x\": dial tcp: connection refused\n",
			"x.dev/vendor@v1.9.0 is not available: the module proxy does not answer: go list: exit status 1: go: x.dev/vendor@v1.9.0: Get \"https://proxy/x\": dial tcp: connection refused"},
		{"something else", "go: no space left on device", "go: no space left on device"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := unavailable(errors.New(test.says), v)
			var silent *UnreachableError
			if err.Error() != test.want || errors.As(err, &missing) != (strings.Contains(test.want, "not published") || strings.Contains(test.want, "not in Go's")) ||
				errors.As(err, &silent) != strings.Contains(test.want, "does not answer") {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
	must.NoError(t, unavailable(nil, v))
}

// A proxy may know of a version and not serve its go.mod, which go list does not tell.
func TestNotPublishedButKnown(t *testing.T) {
	vendorProxy(t)
	folder := strings.TrimPrefix(os.Getenv("GOPROXY"), "file://")
	must.Write(t, filepath.Join(folder, "x.dev/vendor/@v/v1.2.0.info"), `{"Version": "v1.2.0"}`)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := filepath.Join(folder, filepath.FromSlash(r.URL.Path))
		if _, err := os.Stat(path); err != nil {
			http.Error(w, "not here", http.StatusForbidden)
			return
		}
		http.ServeFile(w, r, path)
	}))
	defer proxy.Close()
	t.Setenv("GOPROXY", proxy.URL)
	c := open(t, newRoot(t, with(vendored, "v/releases.txt", "1.1.1 1.2.0\n")))
	refs := must.Get(c.Find(Want{Component: "v", Version: "1.2.0"}))(t)
	itself(t, must.Err(c.Build(t.Context(), refs, nil)), "x.dev/vendor@v1.2.0 is not published")
}

// itself fails the test unless an error says, with these words, that a version itself is not published.
func itself(t *testing.T, err error, words string) {
	t.Helper()
	missing, ok := errors.AsType[*NotPublishedError](err)
	must.Equal(t, err, true, ok && !missing.Required)
	must.Fail(t, err, words)
}

func TestDownload(t *testing.T) {
	vendorProxy(t)
	folder := strings.TrimPrefix(os.Getenv("GOPROXY"), "file://")
	proxy := httptest.NewServer(http.FileServer(http.Dir(folder)))
	defer proxy.Close()
	t.Setenv("GOPROXY", proxy.URL)
	dir := must.Get(Download(t.Context(), module.Version{Path: "x.dev/vendor", Version: "v1.1.0"}))(t)
	must.Contain(t, string(must.Get(os.ReadFile(filepath.Join(dir, "vendor.go")))(t)), "v1.1.0")
	itself(t, must.Err(Download(t.Context(), module.Version{Path: "x.dev/vendor", Version: "v1.9.0"})), "is not published")
	proxy.Close()
	_, err := Download(t.Context(), module.Version{Path: "x.dev/vendor", Version: "v1.0.0"})
	must.Equal(t, err, true, errors.As(err, new(*UnreachableError)))
}

// What go mod download says of a module that it cannot have is in its answer alone.
func TestSourceThatIsNotPublished(t *testing.T) {
	vendorProxy(t) // for its module cache
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not here", http.StatusForbidden)
	}))
	defer proxy.Close()
	t.Setenv("GOPROXY", proxy.URL)
	m := goModule{folder: t.TempDir()}
	m.file = filepath.Join(m.folder, "go.mod")
	must.Write(t, m.file, "module x.dev/ours\n\ngo 1.24\n\nrequire x.dev/vendor v1.2.0\n")
	err := must.Err(m.source(t.Context(), "x.dev/vendor"))
	itself(t, unavailable(err, module.Version{Path: "x.dev/vendor", Version: "v1.2.0"}), "403 Forbidden")
}

// The error about a version with which no main of ours compiles has the compiler's reason.
func TestVersionThatDoesNotBuild(t *testing.T) {
	vendorProxy(t)
	// A map must not have a key twice: an error of the compiler with 1.1.0 alone.
	c := open(t, newRoot(t, with(vendored, "v/main/main.go", `package main

import "x.dev/vendor"

var said string

func main() { println(said, len(map[bool]int{true: 0, vendor.Version == "v1.1.0": 1})) }
`)))
	err := must.Err(c.Build(t.Context(), must.Get(c.Find(Want{Component: "v", Version: "1.1.0"}))(t), nil))
	failed, ok := errors.AsType[*BuildError](err)
	must.Equal(t, err, true, ok && strings.Contains(failed.Complaint(), "duplicate key"))
}
