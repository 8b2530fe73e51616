package engine

import (
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/must"
)

// A run beside other work says so.
func TestCPU(t *testing.T) {
	for name, c := range map[string]struct {
		labs   fakeLabs
		known  bool
		others float64
		slowed bool
	}{
		"an idle machine":                           {fakeLabs{cpu: CPUTime{50 * time.Second, 70 * time.Second, 100 * time.Second}}, true, 0.2, false},
		"other work beside it":                      {fakeLabs{cpu: CPUTime{40 * time.Second, 90 * time.Second, 100 * time.Second}}, true, 0.5, true},
		"a lab that has used more than the machine": {fakeLabs{cpu: CPUTime{40 * time.Second, 30 * time.Second, 100 * time.Second}}, true, 0, false},
		"it is not known":                           {fakeLabs{cpu: CPUTime{time.Second, time.Second, time.Second}, noCPU: errBroken}, false, 0, false},
	} {
		e, l := newExecution(framework.Scenario{}, &c.labs, Options{}), &lane{lab: &fakeLab{fakeLabs: &c.labs}}
		e.startCPU(t.Context(), l)
		e.measureCPU(t.Context(), l)
		cpu := e.report.CPU
		must.Equal(t, name, [...]bool{c.known, c.slowed}, [...]bool{cpu != nil, cpu.Slowed()})
		must.Equal(t, name, true, cpu == nil || cpu.Others == c.others)
	}
}
