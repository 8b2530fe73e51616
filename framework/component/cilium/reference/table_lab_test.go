//go:build lab

package reference

import (
	"slices"
	"testing"

	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/topology/must"
)

// versions are in the table: the first and a late one of each minor, as far as the catalogue and the vendor's proxy
// have them, and the versions of masquerade-drift.
var versions = []string{
	"1.8.1", "1.9.18", "1.10.0", "1.11.1", "1.11.6", "1.12.0", "1.12.4", "1.12.13", "1.12.19", "1.13.0", "1.13.7", "1.13.18", "1.14.0", "1.14.19",
	"1.15.0", "1.15.19", "1.16.0", "1.16.9", "1.16.19", "1.17.0", "1.17.8", "1.18.0", "1.18.4", "1.18.11", "1.19.0", "1.19.5", "1.20.0", "1.20.2",
}

// TestTable compares the table of package configdrift with the vendor's modules, or with -update writes it, in minutes.
func TestTable(t *testing.T) {
	var all []configdrift.Reference
	keys := map[string]bool{}
	for _, version := range versions {
		r := must.Get(Of(t.Context(), version))(t)
		for key := range r.Keys {
			keys[key] = true
		}
		all = append(all, r)
	}
	for i, r := range all { // a name in a note need not be a key
		for j, n := range r.Notes {
			r.Notes[j].Keys = slices.DeleteFunc(n.Keys, func(key string) bool { return !keys[key] })
		}
		all[i].Notes = slices.DeleteFunc(r.Notes, func(n configdrift.Note) bool { return len(n.Keys) == 0 })
	}
	got := "# Keys of Cilium's ConfigMap, as the vendor's modules state them. Rendered by:\n" +
		"# go test -tags lab -run TestTable ./framework/component/cilium/reference -update\n" + new(configdrift.Table).With(all...).String()
	goldentest.Compare(t, "../../../../detect/configdrift/cilium.keys", got)
}
