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
		s := must.Get(scenarios.All[i].Unclassified(map[string]string{"cilium": test.version}))(t)
		s.Variants[0].Form = test.runs
		err := suite.Know(c, s, false, s.Variants...)
		form, ok := errors.AsType[*suite.FormError](err)
		must.Equal(t, err, [...]bool{test.refused, test.refused}, [...]bool{ok, err != nil})
		if ok {
			must.Equal(t, "", "the script of node-drain runs cilium as a slice, and 1.19.3 is built whole", form.Error())
		}
	}
}
