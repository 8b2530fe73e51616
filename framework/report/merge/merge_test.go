package merge

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/topology/must"
)

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// shard stores a run that passes, of one variant, and returns it.
func shard(t *testing.T, output, variant, role string, change func(*report.Report)) Shard {
	t.Helper()
	expected := map[string]string{"affected": "reproduced", "fixed": "prevented"}[role]
	r := report.Report{
		Schema: report.Schema, Scenario: "node-drain", Verdict: "pass", Started: began, Half: "half", Relapse: "v1",
		Command: "relapse run node-drain --variant=" + variant, Machine: map[string]any{"cpus": 2.0},
		Images: map[string]string{"relapse.dev/node:1": "sha256:1", variant: "sha256:2"},
		Steps:  []report.Step{{Scope: "lab", Name: "lab is up", Began: began}},
		Variants: []report.Variant{{
			Name: variant, Role: role, Expected: expected, Verdict: expected, EvidenceDir: filepath.Join("evidence", variant),
		}},
		Timings: report.Timings{Images: 1, Lab: 2, Total: 3},
	}
	if change != nil {
		change(&r)
	}
	dir := must.Get(report.NewRun(output, r.Scenario, r.Started))(t)
	must.NoError(t, r.Write(dir))
	for name, text := range map[string]string{
		filepath.Join("evidence", variant, "01-log-tor1.txt"): variant,
		filepath.Join("evidence", "lab", "01-log-tor1.txt"):   "lab of " + variant,
		"junit.xml": `<testsuites tests="1" errors="0" failures="0" time="2"><testsuite name="` + variant + `" tests="1"></testsuite></testsuites>`,
	} {
		path := filepath.Join(dir, name)
		must.Write(t, path, text)
	}
	return Shard{dir, r}
}

func TestWrite(t *testing.T) {
	in := t.TempDir()
	one := shard(t, filepath.Join(in, "1"), "old", "affected", nil)
	two := shard(t, filepath.Join(in, "2"), "new", "fixed", func(r *report.Report) { r.Timings.Total, r.Started = 9, began.Add(-time.Minute) })
	out := t.TempDir()
	dir, merged, err := Write(out, []Shard{one, two})
	must.NoError(t, err)
	stored := must.Get(report.Read(filepath.Join(dir, "report.json")))(t)
	if merged.Verdict != "pass" || merged.Half != "" || len(merged.Variants) != 2 || len(merged.Merged.Conflicts) > 0 ||
		!merged.Started.Equal(two.Report.Started) || merged.Timings.Total != 9 || len(merged.Images) != 3 ||
		merged.Command != "relapse run node-drain --variant=old && relapse run node-drain --variant=new" {
		t.Errorf("%+v", merged)
	}
	must.Equal(t, "", merged.Merged, stored.Merged)
	for name, want := range map[string]string{
		"evidence/old/01-log-tor1.txt":   "old",
		"evidence/new/01-log-tor1.txt":   "new",
		"evidence/lab-1/01-log-tor1.txt": "lab of old",
		"evidence/lab-2/01-log-tor1.txt": "lab of new",
		"junit.xml":                      `tests="2"`,
		"report.html":                    "node-drain",
		"../latest/report.json":          "sha256:2",
	} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %q, %v; want %q", name, text, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(one.Dir, "junit.xml")); err != nil {
		t.Errorf("the shard has lost its report: %v", err)
	}
}

func TestConflicts(t *testing.T) {
	for _, test := range []struct {
		name    string
		change  func(*report.Report) // of a second run of the same variant
		verdict string
		stands  string // the variant's
		says    []string
	}{
		{"twice, the same", nil, "pass", "reproduced", []string{"old ran twice: reproduced in ONE, and reproduced in TWO"}},
		{"twice, and another verdict", func(r *report.Report) { r.Verdict, r.Variants[0].Verdict = "fail", "missed" },
			"fail", "missed", []string{"old ran twice: reproduced in ONE, and missed in TWO"}},
		{"another verdict, of a run that says that it passed", func(r *report.Report) { r.Variants[0].Verdict = "missed" },
			"inconclusive", "missed", []string{"old ran twice: reproduced in ONE, and missed in TWO"}},
		{
			"other versions, and another machine", func(r *report.Report) {
				r.Relapse, r.Images["relapse.dev/node:1"], r.Machine = "v2", "sha256:3", map[string]any{"cpus": 4.0}
				r.Variants[0].Name = "older"
			},
			"pass", "reproduced", []string{
				`relapse is "v1" in ONE, and "v2" in TWO`,
				"the machine is map[cpus:2] in ONE, and map[cpus:4] in TWO: times do not compare",
				"image relapse.dev/node:1 is sha256:1 in an earlier shard, and sha256:3 in TWO",
			},
		},
		{
			"one that was killed", func(r *report.Report) {
				r.Variants[0].Name, r.Unfinished = "older", &report.Unfinished{Steps: []string{"old: fault"}}
			},
			"inconclusive", "reproduced", []string{"TWO has not ended; running steps: old: fault"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			one := shard(t, t.TempDir(), "old", "affected", nil)
			two := shard(t, t.TempDir(), "old", "affected", test.change)
			merged, _, err := Reports([]Shard{one, two})
			must.NoError(t, err)
			if merged.Verdict != test.verdict || merged.Variants[0].Verdict != test.stands || !strings.Contains(merged.Half, "no fixed variant") {
				t.Errorf("%s, %s, %s", merged.Verdict, merged.Variants[0].Verdict, merged.Half)
			}
			var got []string
			for _, c := range merged.Merged.Conflicts {
				got = append(got, strings.NewReplacer(one.Dir, "ONE", two.Dir, "TWO").Replace(c))
			}
			must.Equal(t, "conflicts", test.says, got)
		})
	}
	one := shard(t, t.TempDir(), "old", "affected", nil)
	two := shard(t, t.TempDir(), "new", "fixed", func(r *report.Report) { r.Ablated = "fault" })
	if _, _, err := Reports([]Shard{one, two}); err == nil || !strings.Contains(err.Error(), "is without fault: they are not parts of one run") {
		t.Error(err)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	shard(t, dir, "old", "affected", nil)
	newer := shard(t, dir, "new", "fixed", func(r *report.Report) { r.Started = began.Add(time.Hour) })
	other := shard(t, dir, "old", "affected", func(r *report.Report) { r.Scenario = "added-nic" })
	shards, older, empty, err := Find(false, dir, filepath.Join(dir, "lost"))
	if err != nil || len(empty) != 1 || older != 1 || len(shards) != 2 || shards[0].Dir != other.Dir || shards[1].Dir != newer.Dir {
		t.Errorf("%+v, %d older, %v", shards, older, err)
	}
	if parts := ByScenario(append(shards, newer)); len(parts) != 2 || len(parts[1]) != 2 {
		t.Errorf("%+v", parts)
	}
}

// Halves that ran on routers of different kinds are no pair, whichever shards they are in.
func TestReportsOfOtherRouters(t *testing.T) {
	with := func(software string) func(*report.Report) {
		return func(r *report.Report) {
			r.Topology = &report.Topology{Members: []report.Member{{Name: "tor1", Kind: report.RouterMember, Software: software}}}
		}
	}
	in := t.TempDir()
	none := shard(t, filepath.Join(in, "0"), "other", "fixed", nil)
	old := shard(t, filepath.Join(in, "1"), "old", "affected", with("")) // GoBGP
	if _, _, err := Reports([]Shard{old, shard(t, filepath.Join(in, "2"), "new", "fixed", with("gobgp"))}); err != nil {
		t.Error(err)
	}
	frr := shard(t, filepath.Join(in, "3"), "new", "fixed", with("frr"))
	want := `router "tor1" is gobgp in ` + old.Dir + ", and frr in " + frr.Dir + ": they are not parts of one run"
	if _, _, err := Reports([]Shard{none, old, frr}); err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}

// Shards on different subnets are no parts of one run: the merged report has one topology.
func TestReportsOfOtherSubnets(t *testing.T) {
	on := func(subnet string) func(*report.Report) {
		return func(r *report.Report) {
			r.Topology = &report.Topology{Networks: []report.Network{{Name: "nodes", Subnet: netip.MustParsePrefix(subnet)}}}
		}
	}
	in := t.TempDir()
	old := shard(t, filepath.Join(in, "1"), "old", "affected", on("10.4.94.0/24"))
	if _, _, err := Reports([]Shard{old, shard(t, filepath.Join(in, "2"), "new", "fixed", on("10.4.94.0/24"))}); err != nil {
		t.Error(err)
	}
	if _, _, err := Reports([]Shard{old, shard(t, filepath.Join(in, "3"), "new", "fixed", nil)}); err != nil {
		t.Errorf("a report without a topology, of an older relapse: %v", err)
	}
	moved := shard(t, filepath.Join(in, "4"), "new", "fixed", on("10.200.0.0/24"))
	want := `network "nodes" is 10.4.94.0/24 in ` + old.Dir + ", and 10.200.0.0/24 in " + moved.Dir + ": they are not parts of one run"
	if _, _, err := Reports([]Shard{old, moved}); err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}

// A run that was replaced is not hidden by one with another verdict. One that was ended from outside
// is inconclusive, and does not count.
func TestReplaced(t *testing.T) {
	for _, test := range []struct {
		first, verdict, want string
		shards, older        int
	}{
		{"fail", "prevented", "fail", 2, 0},
		{"inconclusive", "inconclusive", "pass", 1, 1},
		{"pass", "reproduced", "pass", 1, 1},
	} {
		in := t.TempDir()
		shard(t, in, "old", "affected", func(r *report.Report) { r.Verdict, r.Variants[0].Verdict = test.first, test.verdict })
		shard(t, in, "old", "affected", func(r *report.Report) { r.Started = began.Add(time.Hour) })
		shards, older, _, err := Find(true, in)
		if err != nil || len(shards) != test.shards || older != test.older {
			t.Fatalf("%s: %d shards, %d older, %v", test.first, len(shards), older, err)
		}
		merged, _, err := Reports(shards)
		if err != nil || merged.Verdict != test.want {
			t.Errorf("%s, and then pass: %s, %v", test.first, merged.Verdict, err)
		}
		if shards, _, _, _ := Find(false, in); len(shards) != 1 {
			t.Errorf("%s: without it, %d shards", test.first, len(shards))
		}
	}
}
