package suite_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/must"
)

// A script that runs a slice does not run a version that is built whole, although an image
// of the same name is there.
func TestKnow(t *testing.T) {
	c := must.Get(images.Open("../.."))(t)
	i := slices.IndexFunc(scenarios.All, func(s framework.Scenario) bool { return s.Incident.Name == "node-drain" })
	for _, test := range []struct {
		version string
		runs    framework.Form // what the script runs
		refused bool
	}{
		{"1.11.6", framework.Slice, false},
		{"1.19.3", framework.Whole, false},
		{"1.19.3", framework.Slice, true},
	} {
		s, err := scenarios.All[i].Unclassified(map[string]string{"cilium": test.version})
		must.NoError(t, err)
		s.Variants[0].Form = test.runs
		err = suite.Know(c, s, false, s.Variants...)
		var form *suite.FormError
		if errors.As(err, &form) != test.refused || (err != nil) != test.refused {
			t.Fatalf("%s as a %s: %v", test.version, test.runs, err)
		}
		if want := "the script of node-drain runs cilium as a slice, and 1.19.3 is built whole"; test.refused && form.Error() != want {
			t.Errorf("%q, want %q", form, want)
		}
	}
}
