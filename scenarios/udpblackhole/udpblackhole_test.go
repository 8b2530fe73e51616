package udpblackhole

import (
	"slices"
	"testing"

	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/must"
)

// A refused packet is an answer for the senders to the Service, and for nobody else.
func TestRefusalsCountForSendersAlone(t *testing.T) {
	script := Scenario.Variants[0].Script()
	for _, p := range script.Probes {
		must.Equal(t, p.Name, p.RefusalAnswers, p.To == service.Name)
	}
	if len(script.Impacted) != len(nodes) || slices.ContainsFunc(script.Impacted, func(p probe.Probe) bool { return p.Protocol != probe.UDPConnected }) {
		t.Errorf("the steady senders are %v", script.Impacted)
	}
}
