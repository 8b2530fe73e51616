package qualify

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/must"
)

// What qualifications have found is known of the same edge, and of other edges by the version.
func TestAdvise(t *testing.T) {
	dir := t.TempDir()
	in := fine()
	of := incident("", "reproduced")
	of.Name, of.OfUpgrade, of.From = "spill", true, Seen{}
	in.Incidents = []Incident{incident("prevented", "reproduced"), of}
	q := Judge(in, Thresholds{MaxGapMS: 1000, MaxLost: 0.001}, "")
	q.Began = time.Date(2026, 11, 27, 3, 4, 5, 0, time.UTC)
	must.NoError(t, os.MkdirAll(dir+"/qualify/a", 0o700))
	must.NoError(t, os.MkdirAll(dir+"/qualify/b", 0o700))
	must.NoError(t, q.Write(dir+"/qualify/a"))
	unfinished := q
	unfinished.Verdict, unfinished.Inputs.Incidents = Unknown, nil
	must.NoError(t, unfinished.Write(dir+"/qualify/b"))
	known := Merge(nil, must.Get(Collect(dir))(t)...)
	must.Equal(t, "", 4, len(known))

	component := in.Component
	flood, spill, drought := tested("flood", component), tested("spill", component+".from", component+".to"), tested("drought", component)
	drought.NeedsValue = "bgp.enabled"
	drought.Variants = []framework.Variant{
		{Role: framework.Affected, Components: map[string]string{component: "1.0.0"}},
		{Role: framework.Fixed, Components: map[string]string{component: "1.1.0"}},
		// These two differ by their configuration: neither says anything of the version.
		{Role: framework.Affected, Components: map[string]string{component: "0.9.0"}},
		{Role: framework.Fixed, Components: map[string]string{component: "0.9.0"}},
	}
	all := []framework.Scenario{flood, spill, drought}
	for _, tt := range []struct {
		from, to                    string
		values                      *Given
		qualified                   int
		ofFlood, ofSpill, ofDrought Outcome
		impossible                  string
		lines                       int
		says                        string
	}{
		{"1.0.0", "1.1.0", nil, 1, Introduced, Introduced, Fixed, "", 6, "qualified: NO-GO"},
		{"1.0.0", "1.1.1", &Given{values: map[string]any{"bgp": map[string]any{"enabled": true}}}, 0, NotJudgeable, NotJudgeable, NotJudgeable, "", 2,
			"never qualified"},
		{"1.1.0", "1.0.0", &Given{}, 0, Fixed, NotJudgeable, Introduced, "it needs bgp.enabled", 4, "elsewhere 1.0.0 to 1.1.0: reproduced on 2026-11-27, qualify/a"},
		{"0.9.0", "1.1.0", nil, 0, NotJudgeable, NotJudgeable, NotJudgeable, "", 2, "outcome   not known"},
	} {
		t.Run(tt.from+" to "+tt.to, func(t *testing.T) {
			a := must.Get(Advise(all, known, component, tt.from, tt.to, tt.values))(t)
			must.Equal(t, "qualified", tt.qualified, len(a.Qualified))
			must.Equal(t, "outcomes", []Outcome{tt.ofFlood, tt.ofSpill, tt.ofDrought}, []Outcome{a.Incidents[0].Outcome, a.Incidents[1].Outcome, a.Incidents[2].Outcome})
			must.Equal(t, "values", tt.impossible, a.Incidents[2].Impossible)
			must.Equal(t, "lines", tt.lines, len(a.Lines()))
			var text strings.Builder
			a.Write(&text)
			if !strings.Contains(text.String(), tt.says) {
				t.Errorf("no %q in\n%s", tt.says, text.String())
			}
		})
	}
}

// The later of two results of one edge stays; what is no result is refused by its number.
func TestMergeKnown(t *testing.T) {
	old := Known{Component: "c", From: "1.0.0", To: "1.1.0", When: "2026-01-01", Verdict: "GO"}
	later, other := old, old
	later.When, later.Verdict = "2026-02-01", "NO-GO"
	other.Under = "with graceful restart"
	must.Equal(t, "", []Known{later, other}, Merge([]Known{later}, old, other))
	_, err := ReadKnown(bytes.NewBufferString(`{"component":"c","from":"1.0.0","to":"1.1.0","verdict":"GO"} {"component":"c"}`))
	if err == nil || !strings.Contains(err.Error(), "result 2: expected a component") {
		t.Errorf("%v", err)
	}
	must.Get(Recorded())(t)
}
