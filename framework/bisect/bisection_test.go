package bisect

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/report/stored"
	"github.com/relapse-dev/relapse/topology/must"
)

// verdicts are the verdicts of the versions that run; other versions are not published.
type verdicts map[string]framework.Verdict

func (v verdicts) Judge(_ context.Context, version string) (Step, error) {
	verdict, there := v[version]
	if !there {
		return Step{Version: version, Outcome: Skipped, Why: "not published"}, nil
	}
	return Step{
		Version: version, Outcome: OutcomeOf(verdict), Verdict: string(verdict),
		Why: "for a reason", Report: "node-drain/" + version + "/report.html", TookMS: 45000,
	}, nil
}

type judging func(ctx context.Context, version string) (Step, error)

func (j judging) Judge(ctx context.Context, version string) (Step, error) { return j(ctx, version) }

func bisection(t *testing.T, versions ...string) *Bisection {
	t.Helper()
	b := must.Get(Start("node-drain", "cilium", nil, versions, nil))(t)
	b.Dir = t.TempDir()
	return b
}

func silent(string) {}

func TestBisection(t *testing.T) {
	var out strings.Builder
	b := bisection(t, "1.11.0", "1.11.1", "1.11.2", "1.12.0-rc0", "1.12.0")
	b.WritePlan(&out)
	err := b.Run(t.Context(), verdicts{"1.11.0": "reproduced", "1.11.2": "unknown", "1.12.0-rc0": "refused", "1.12.0": "prevented"},
		func(text string) { out.WriteString("note: " + text + "\n") })
	must.NoError(t, err)
	must.Equal(t, "verdict", framework.Pass, b.Verdict())
	b.WriteResult(&out)
	goldentest.Compare(t, "bisection.txt", strings.ReplaceAll(out.String(), b.Dir, "DIR"))
}

func TestVerdict(t *testing.T) {
	for _, test := range []struct {
		name       string
		verdicts   verdicts
		want       framework.RunVerdict
		conclusion string
	}{
		{"known", verdicts{"1.0.0": "reproduced", "1.0.1": "missed", "1.0.2": "prevented"}, framework.Pass, "fixed in 1.0.2; last affected 1.0.1"},
		{"alike", verdicts{"1.0.0": "reproduced", "1.0.2": "missed"}, framework.Fail, "both ends are alike, and those of each minor: affected"},
		{"alike, next to an end that could not be judged", verdicts{"1.0.0": "reproduced", "1.0.1": "missed", "1.0.2": "unknown"}, framework.Inconclusive,
			"1.0.0 and 1.0.1 are alike: affected; versions outside of them could not be judged: 1.0.2"},
		{"a range", verdicts{"1.0.0": "reproduced", "1.0.2": "prevented"}, framework.Inconclusive,
			"fixed in 1.0.2 or earlier; last affected 1.0.0; not judged: 1.0.1"},
		{"alike, between ends that cannot be had", verdicts{"1.0.1": "reproduced"}, framework.Inconclusive,
			"only 1.0.1 could be judged: affected; versions outside of it could not be judged: 1.0.0, 1.0.2"},
		{"nothing", verdicts{"1.0.0": "vacuous"}, framework.Inconclusive, "no version could be judged"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := bisection(t, "1.0.0", "1.0.1", "1.0.2")
			must.NoError(t, b.Run(t.Context(), test.verdicts, silent))
			must.Equal(t, "", "node-drain, cilium: "+test.conclusion, b.conclusion())
			must.Equal(t, "verdict", test.want, b.Verdict())
		})
	}
}

// If versions below the range may have brought the change, no exact version is known.
func TestBelowTheRange(t *testing.T) {
	b := must.Get(Start("ipvs-deadlock", "kube-proxy", nil, []string{"1.12.5", "1.13.0"}, nil, "1.12.3", "1.12.4"))(t)
	b.Dir = t.TempDir()
	must.NoError(t, b.Run(t.Context(), verdicts{"1.12.5": "prevented", "1.13.0": "reproduced"}, silent))
	const want = "ipvs-deadlock, kube-proxy: broken in 1.13.0 or earlier; last not affected 1.12.5; not judged: 1.12.3, 1.12.4"
	must.Equal(t, "", [...]any{want, framework.Inconclusive}, [...]any{b.conclusion(), b.Verdict()})
}

func TestInterrupted(t *testing.T) {
	all := verdicts{"1.0.0": "reproduced", "1.0.1": "reproduced", "1.0.2": "prevented"}
	ctx, interrupt := context.WithCancel(t.Context())
	b := bisection(t, slices.Sorted(maps.Keys(all))...)
	err := b.Run(ctx, judging(func(ctx context.Context, version string) (Step, error) {
		if len(b.Record.Steps) == 2 {
			interrupt() // in the middle of the third run
		}
		return all.Judge(ctx, version)
	}), silent)
	var record Record
	must.NoError(t, stored.Read(b.Dir, FileJSON, Schema, &record))
	must.Is(t, err, engine.ErrInterrupted)
	must.Equal(t, record.Steps, 2, len(record.Steps))
}

// A failure that says nothing about the version ends the search.
func TestRunBreaks(t *testing.T) {
	b := bisection(t, "1.0.0", "1.0.1")
	broken := errors.New("no lab")
	err := b.Run(t.Context(), judging(func(context.Context, string) (Step, error) { return Step{}, broken }), silent)
	must.Is(t, err, broken)
	must.Equal(t, b.Record.Steps, 0, len(b.Record.Steps))
}

func TestSpans(t *testing.T) {
	all := strings.Fields("1.0.0 1.0.1 1.0.2 1.0.3 1.1.0 1.1.1")
	for some, want := range map[string]string{
		"":                        "",
		"1.0.1":                   "1.0.1",
		"1.0.1 1.0.2":             "1.0.1, 1.0.2",
		"1.0.1 1.0.2 1.0.3":       "1.0.1 to 1.0.3",
		"1.0.0 1.0.2 1.0.3 1.1.0": "1.0.0, 1.0.2 to 1.1.0",
		"1.0.0 1.0.1 1.0.2 1.1.1": "1.0.0 to 1.0.2, 1.1.1",
		"1.0.3 1.1.0 1.1.1 2.0.0": "1.0.3 to 1.1.1, 2.0.0",
		"2.0.0 2.0.1 2.0.2":       "2.0.0, 2.0.1, 2.0.2",
	} {
		must.Equal(t, some, want, spans(strings.Fields(some), all))
	}
}
