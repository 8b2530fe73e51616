package main

import (
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestFamilyIsAParameter(t *testing.T) {
	can := framework.Scenario{Incident: framework.Incident{Name: "can"}, Parameters: []framework.Parameter{framework.Family}}
	cannot := framework.Scenario{Incident: framework.Incident{Name: "cannot"}}
	dual := map[string]string{"family": "dual"}
	for _, test := range []struct {
		name   string
		of     family
		set    map[string]string
		chosen []framework.Scenario
		want   map[string]string
		says   string
	}{
		{"not given", "", nil, []framework.Scenario{cannot}, nil, ""},
		{"of a scenario that has it", "dual", nil, []framework.Scenario{can}, dual, ""},
		{"twice, alike", "dual", dual, []framework.Scenario{can}, dual, ""},
		{"twice", "dual", map[string]string{"family": "ipv4"}, []framework.Scenario{can}, nil, "--family=dual and --set family=ipv4: give one of them"},
		{"the default", "ipv4", nil, []framework.Scenario{cannot}, nil, ""},
		{"of one that has not", "dual", nil, []framework.Scenario{can, cannot}, nil, "--family: the lab of cannot is of IPv4 alone: expected node-drain, "},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.of.into(test.set, test.chosen...)
			if test.says != "" {
				must.Fail(t, err, test.says)
				must.Equal(t, "status", exitUsage, exitStatus(t.Context(), err))
				return
			}
			must.NoError(t, err)
			must.Equal(t, "parameters", test.want, got, cmpopts.EquateEmpty())
		})
	}
}
