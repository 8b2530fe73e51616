package images

import (
	"testing"

	"golang.org/x/mod/modfile"

	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// What takes the place of the vendor's choice is noted in the go.mod that is derived, and
// read from there: with what it is for, and only where something is compiled from it.
func TestSubstitutes(t *testing.T) {
	b := &versionBuild{
		component: &component{Go: "1.26", folder: "vendor"}, version: "1.2.3",
		vendor: vendorModule{
			Module: "example.org/vendor",
			AtLeast: map[string]string{
				"example.org/old": "v1.1.0", "example.org/indirect": "v0.2.0", "example.org/kept": "v1.4.0", "example.org/tool": "v1.1.0",
			},
			Replace: map[string]string{
				"example.org/unserved": "example.org/unserved v0.9.0", "example.org/own": "example.org/ours v1.0.0", "example.org/part": "example.org/part v0.3.0",
			},
			Unreplaced: []string{"example.org/forked"},
		},
	}
	derived := must.Get(b.derive(must.Read(t, "testdata/substitute-vendor.mod")))(t)
	mod := must.Get(modfile.Parse("derived", derived, nil))(t)
	sums := map[string]string{} // nothing is compiled from example.org/tool
	for _, v := range []string{"forked v1.0.0", "kept v1.5.0", "old v1.1.0", "ours v1.0.0", "part v0.3.0", "unserved v0.9.0", "indirect v0.2.0"} {
		sums["example.org/"+v] = "h1:x="
	}
	got := each.Of(substitutesIn(mod, sums), Substitute.String)
	want := []string{
		"example.org/forked v1.0.0 for example.org/fork v1.0.1",
		"example.org/indirect v0.2.0 for v0.1.0",
		"example.org/old v1.1.0 for v1.0.0",
		"example.org/ours v1.0.0 for example.org/own v1.0.0",
		"example.org/part v0.3.0 for ./part",
		"example.org/unserved v0.9.0 for v1.0.0",
	}
	must.Equal(t, string(derived), want, got)
}

// The catalogue's versions name what was raised or replaced in them.
func TestCatalogueSubstitutes(t *testing.T) {
	all := builds(t)
	for name, want := range map[string]string{
		"cilium/1.18.0": "",
		"cilium/1.18.4": "k8s.io/apimachinery v0.33.3 for github.com/cilium/apimachinery v0.33.3-1",
		"cilium/1.20.2": "github.com/osrg/gobgp/v4 v4.8.0 for v4.6.1-0.20260630022313-d6dee8360046, " +
			"sigs.k8s.io/mcs-api/controllers v0.0.0-20260403094305-4b9911b73f14 for v0.5.2",
	} {
		b, there := all[name]
		if !there {
			t.Fatalf("the catalogue has no %s", name)
		}
		must.Equal(t, name, want, joined(must.Get(b.substitutes())(t)))
	}
}
