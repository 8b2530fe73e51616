package page

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

// wide is a report with more of everything than a screen has lines.
func wide() report.Report {
	r := report.Report{Scenario: "drain", Verdict: "fail"}
	for i := range 12 {
		r.Variants = append(r.Variants, report.Variant{Name: fmt.Sprint("version-", i), Role: "fixed", Expected: "prevented", Verdict: "prevented", ElapsedMS: 1000})
	}
	v := &r.Variants[0]
	v.Role, v.Expected, v.Verdict = "affected", "reproduced", "reproduced"
	v.ProbesHurt = []string{"a->b"}
	for i := range 9 {
		v.Reasons = append(v.Reasons, fmt.Sprint("reason ", i))
		v.Remedies = append(v.Remedies, report.Remedy{Name: fmt.Sprint("remedy ", i), Expected: "recovers", Verdict: "recovers", TimeToRecoverMS: new(int64(900 - 100*i))})
		v.Findings = append(v.Findings, report.Finding{
			Finding: detect.Finding{
				Detector: "routes", Kind: "unannounced", State: "active", Object: detect.Prefix(netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", i))), Owner: "node1",
				Says: "No node announces it.",
			}, During: "fault", CameMS: new(int64(100 + i)),
		})
	}
	v.Findings = append(v.Findings, report.Finding{
		Finding: detect.Finding{Detector: "routes", Kind: "swapped", State: "latent", Object: detect.Prefix(netip.MustParsePrefix("10.0.0.0/24")), Owner: "node2", Says: "Swapped."}, During: "baseline",
	})
	return r
}

func TestScreenFits(t *testing.T) {
	lines := Screen(t.TempDir(), wide())
	if len(lines) > 35 {
		t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	must.Contain(t, strings.Join(lines, "\n"), "broken     a->b gets no answer", "fastest    remedy 8: traffic was back after 100ms",
		"reason 6\n           and 2 more\n", "remedy 2: traffic was back after 700ms\n           and 2 more\n", "verdict    ✔ version-0", "verdict    ✔ version-11")
}

func TestScreenSaysWhereThePathEnds(t *testing.T) {
	dir := folder(t, drained())
	const want = "path       requests of outside->master2: tor1 has no route to 10.5.115.2 (unreachable 0.0.0.0/0)"
	must.Contain(t, strings.Join(Screen(dir, drained()), "\n")+"\n", "\n"+want+"\n")
}

// Findings of the same cause are one line, with how many more there are.
func TestCauses(t *testing.T) {
	want := []string{
		"finding    active unannounced at 10.0.0.0/24 (node1), and 8 more, 100ms into the fault: No node announces it.",
		"finding    latent swapped at 10.0.0.0/24 (node2), before the fault: Swapped.",
	}
	must.Equal(t, "", want, causes(wide().Variants[0].Findings))
}

// Only packets of impacted probes are counted as lost.
func TestLostOfImpacted(t *testing.T) {
	v := report.Variant{
		ProbesHurt: []string{"a->b", "b->a"}, Packets: report.Packets{Sent: 1190, Lost: 90},
		Probes: []report.Probe{{Name: "a->b", Sent: 100, Lost: 60}, {Name: "b->a", Sent: 90, Lost: 30}, {Name: "a->c", Sent: 1000}},
	}
	must.Equal(t, "", "90 of 190 packets lost", (stored{Variant: v}).lostOfImpacted())
}
