package qualify

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/framework/report/stored"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// Advice uses a qualification's verdict for the same upgrade, and its incidents for any upgrade with their versions.
func TestAdvise(t *testing.T) {
	dir := t.TempDir()
	inputs := fine()
	upgradeIncident := incident("", "reproduced")
	upgradeIncident.Name, upgradeIncident.OfUpgrade, upgradeIncident.From = "spill", true, Seen{}
	inputs.Incidents = []Incident{incident("prevented", "reproduced"), upgradeIncident}
	q := Judge(inputs, Thresholds{MaxGapMS: 1000, MaxLost: 0.001}, "")
	q.Began = time.Date(2026, 11, 27, 3, 4, 5, 0, time.UTC)
	for _, folder := range []string{"qualify/a", "qualify/b", "bisect/c", "bisect/d", "bisect/e", "bisect/f"} {
		must.NoError(t, os.MkdirAll(filepath.Join(dir, folder), 0o700))
	}
	must.NoError(t, q.Write(dir+"/qualify/a"))
	unfinished := q
	unfinished.Verdict, unfinished.Inputs.Incidents, unfinished.Inputs.Upgrade = Unknown, nil, Upgrade{Why: notRun}
	must.NoError(t, unfinished.Write(dir+"/qualify/b"))
	// A bisection of the upgrade's incident, and a bisection beside another version of another component.
	component := inputs.Component
	flood, spill, drought := tested("flood", component, "pipe"), tested("spill", component+".from", component+".to"), tested("drought", component)
	flood.Tested[0].Varied, flood.Tested[1].Varied = true, false
	flood.Incident.Remedies = []string{"close the valve"}
	all := []framework.Scenario{flood, spill, drought}
	for name, b := range map[string]bisect.Record{
		"c": {Scenario: "spill", Component: component + ".to", With: map[string]string{component + ".from": "1.2.0"}},
		// A bisection of the version before the upgrade, and a bisection without a time.
		"e": {Scenario: "spill", Component: component + ".from", With: map[string]string{component: "1.5.0"}},
		"f": {Scenario: "flood", Component: component},
		"d": {Scenario: "flood", Component: component, With: map[string]string{"pipe": "8.0.0"}},
	} {
		b.Schema, b.Began = bisect.Schema, q.Began
		if name == "f" {
			b.Began = time.Time{}
		}
		b.Steps = []bisect.Step{{Version: "1.3.0", Outcome: bisect.Affected, Verdict: "reproduced"}, {Version: "1.4.0", Outcome: bisect.Skipped}}
		must.NoError(t, stored.Write(dir+"/bisect/"+name, bisect.FileJSON, b, nil))
	}
	results := advise.Merge(nil, must.Get(Collect(dir, all))(t)...)
	must.Equal(t, "results", 7, len(results))
	of8 := func(k advise.Known) bool { return k.Under == "pipe 8.0.0" && k.Remedy == "close the valve" }
	must.Equal(t, "a bisection has a remedy", true, slices.ContainsFunc(results, of8))

	drought.NeedsValue = "bgp.enabled"
	drought.Variants = []framework.Variant{
		{Role: framework.Affected, Components: map[string]string{component: "1.0.0"}},
		{Role: framework.Fixed, Components: map[string]string{component: "1.1.0"}},
		// These two differ by their configuration: neither says anything of the version.
		{Role: framework.Affected, Components: map[string]string{component: "0.9.0"}},
		{Role: framework.Fixed, Components: map[string]string{component: "0.9.0"}},
	}
	all[2] = drought
	for _, tt := range []struct {
		from, to                    string
		values                      *releasefile.Given
		qualified                   int
		ofFlood, ofSpill, ofDrought advise.Outcome
		impossible                  string
		lines                       int
		says                        string
	}{
		{"1.0.0", "1.1.0", nil, 1, advise.Introduced, advise.Introduced, advise.Fixed, "", 6, "qualified: NO-GO on 2026-11-27, qualify/a"},
		{"1.0.0", "1.1.1", &releasefile.Given{Values: map[string]any{"bgp": map[string]any{"enabled": true}}}, 0, advise.NotJudgeable, advise.NotJudgeable, advise.NotJudgeable, "", 3,
			"never qualified"},
		{"1.1.0", "1.0.0", &releasefile.Given{}, 0, advise.Fixed, advise.NotJudgeable, advise.Introduced, "it needs bgp.enabled", 3, "elsewhere 1.0.0 to 1.1.0: reproduced on 2026-11-27, qualify/a"},
		{"1.2.0", "1.3.0", nil, 0, advise.NotJudgeable, advise.Introduced, advise.NotJudgeable, "", 2, "elsewhere 1.3.0: reproduced (pipe 8.0.0) on"},
		{"1.3.0", "1.5.0", nil, 0, advise.NotJudgeable, advise.Introduced, advise.NotJudgeable, "", 2, "ran       1.3.0 to 1.5.0: reproduced on 2026-11-27, bisect/e"},
		{"1.1.0", "1.0.0", &releasefile.Given{Told: []string{"a Secret is not read"}}, 0, advise.Fixed, advise.NotJudgeable, advise.Introduced, "", 5, "values: a Secret is not read"},
		{"0.9.0", "1.1.0", nil, 0, advise.NotJudgeable, advise.NotJudgeable, advise.NotJudgeable, "", 3, "outcome   not known"},
	} {
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) {
			a := must.Get(advise.Advise(each.Of(all, advise.Of), results, component, tt.from, tt.to, tt.values))(t)
			must.Equal(t, "qualified", tt.qualified, len(a.Qualified))
			must.Equal(t, "outcomes", []advise.Outcome{tt.ofFlood, tt.ofSpill, tt.ofDrought}, []advise.Outcome{a.Incidents[0].Outcome, a.Incidents[1].Outcome, a.Incidents[2].Outcome})
			must.Equal(t, "values", tt.impossible, a.Incidents[2].Impossible)
			must.Equal(t, "lines", tt.lines, len(a.Lines()))
			var text strings.Builder
			a.Write(&text)
			must.Contain(t, text.String(), tt.says)
		})
	}
}
