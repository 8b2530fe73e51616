package udpblackhole

import (
	"slices"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/probe"
)

func TestScenario(t *testing.T) {
	if err := Scenario.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, role := range map[string]framework.Role{
		affectedIPTables: framework.Affected, affectedNFTables: framework.Affected,
		fixedIPTables: framework.Fixed, fixedNFTables: framework.Fixed, earlierIPTables: framework.Fixed,
	} {
		if !slices.ContainsFunc(Scenario.Variants, func(v framework.Variant) bool { return v.Name == name && v.Role == role }) {
			t.Errorf("there is no variant %s with the role %s", name, role)
		}
	}
}

// A refused packet is an answer for the senders to the Service, and for nobody else.
func TestRefusalsCountForSendersAlone(t *testing.T) {
	script := Scenario.Variants[0].Script()
	for _, p := range script.Probes {
		if (p.To == service.Name) != p.RefusalAnswers {
			t.Errorf("%s: a refusal is an answer: %t", p.Name, p.RefusalAnswers)
		}
	}
	if len(script.Impacted) != len(nodes) || slices.ContainsFunc(script.Impacted, func(p probe.Probe) bool { return p.Protocol != probe.UDPConnected }) {
		t.Errorf("the steady senders are %v", script.Impacted)
	}
}
