package engine

import (
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
)

// A run beside other work says so, and keeps its verdict.
func TestCPU(t *testing.T) {
	for _, c := range []struct {
		name   string
		labs   fakeLabs
		keep   bool
		known  bool
		others float64
		slowed bool
	}{
		{"an idle machine", fakeLabs{cpu: CPUTime{50 * time.Second, 70 * time.Second, 100 * time.Second}}, false, true, 0.2, false},
		{"other work beside it", fakeLabs{cpu: CPUTime{40 * time.Second, 90 * time.Second, 100 * time.Second}}, false, true, 0.5, true},
		{"a lab that is kept", fakeLabs{cpu: CPUTime{40 * time.Second, 90 * time.Second, 100 * time.Second}}, true, true, 0.5, true},
		{"a lab that has used more than the machine", fakeLabs{cpu: CPUTime{40 * time.Second, 30 * time.Second, 100 * time.Second}}, false, true, 0, false},
		{"it is not known", fakeLabs{cpu: CPUTime{time.Second, time.Second, time.Second}, noCPU: errBroken}, false, false, 0, false},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			w := newWorld()
			p := play(t, w, fakeScenario(w), &c.labs, Options{Keep: c.keep})
			r, _ := p.Report()
			if (r.CPU != nil) != c.known || r.CPU.Slowed() != c.slowed || r.Verdict != string(framework.Pass) {
				t.Errorf("%+v, slowed %v: %s; want known %v, slowed %v: pass", r.CPU, r.CPU.Slowed(), r.Verdict, c.known, c.slowed)
			}
			if r.CPU != nil && r.CPU.Others != c.others {
				t.Errorf("others used %v, want %v", r.CPU.Others, c.others)
			}
		})
	}
}
