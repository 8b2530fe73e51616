package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/module"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/images"
)

// bisected is a bisection of these versions, whose verdicts are given. Versions
// without one are not published.
func bisected(t *testing.T, verdicts map[string]string, versions ...string) (*bisection, *strings.Builder) {
	t.Helper()
	var out strings.Builder
	b := &bisection{
		out: &out, dir: t.TempDir(), note: func(text string) { out.WriteString("note: " + text + "\n") },
		record: bisectionRecord{Schema: bisectionSchema, Scenario: "node-drain", Component: "cilium", Versions: versions},
	}
	b.judge = func(_ context.Context, version string) (bisectionStep, error) {
		verdict, there := verdicts[version]
		if !there {
			err := &images.NotPublishedError{Module: module.Version{Path: "x", Version: "v" + version}, Err: errors.New("403 Forbidden")}
			return bisectionStep{Version: version, Outcome: bisect.Skipped, Why: "not published", err: err}, nil
		}
		return bisectionStep{
			Version: version, Outcome: outcomeOfVerdict(framework.Verdict(verdict)), Verdict: verdict,
			Why: "so it is", Report: "node-drain/" + version + "/report.html", TookMS: 45000,
		}, nil
	}
	if err := b.begin(); err != nil {
		t.Fatal(err)
	}
	return b, &out
}

func nobody(string) bool { return false }

func TestBisection(t *testing.T) {
	b, out := bisected(t, map[string]string{"1.11.6": "reproduced", "1.11.8": "unknown", "1.12.0-rc0": "refused", "1.12.0": "prevented"},
		"1.11.6", "1.11.7", "1.11.8", "1.12.0-rc0", "1.12.0")
	b.printPlan()
	if err := b.search(t.Context(), nobody); err != nil {
		t.Fatal(err)
	}
	b.printResult()
	golden(t, "bisect", strings.ReplaceAll(out.String(), b.dir, "DIR"))
	if err := b.outcome(); err != nil {
		t.Errorf("%v", err)
	}
}

func TestBisectionsExitStatus(t *testing.T) {
	for _, test := range []struct {
		name     string
		verdicts map[string]string
		status   int
	}{
		{"known", map[string]string{"1.0.0": "reproduced", "1.0.1": "missed", "1.0.2": "prevented"}, exitExpected},
		{"alike", map[string]string{"1.0.0": "reproduced", "1.0.2": "missed"}, exitUnexpected},
		{"alike, beside an end that says nothing", map[string]string{"1.0.0": "reproduced", "1.0.1": "missed", "1.0.2": "unknown"}, exitInconclusive},
		{"a range", map[string]string{"1.0.0": "reproduced", "1.0.2": "prevented"}, exitInconclusive},
		{"nothing", map[string]string{"1.0.0": "vacuous"}, exitInconclusive},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, _ := bisected(t, test.verdicts, "1.0.0", "1.0.1", "1.0.2")
			if err := b.search(t.Context(), nobody); err != nil {
				t.Fatal(err)
			}
			if status := exitStatus(t.Context(), b.outcome()); status != test.status {
				t.Errorf("exit status %d, want %d", status, test.status)
			}
		})
	}
}

// An interrupted bisection goes on where it was: no version is judged twice.
func TestBisectionIsResumed(t *testing.T) {
	verdicts := map[string]string{"1.0.0": "reproduced", "1.0.1": "reproduced", "1.0.2": "prevented", "1.0.3": "prevented"}
	versions := []string{"1.0.0", "1.0.1", "1.0.2", "1.0.3"}
	ctx, interrupt := context.WithCancel(t.Context())
	b, _ := bisected(t, verdicts, versions...)
	judge := b.judge
	b.judge = func(ctx context.Context, version string) (bisectionStep, error) {
		if len(b.record.Steps) == 2 {
			interrupt() // in the middle of the third run
		}
		return judge(ctx, version)
	}
	if err := b.search(ctx, nobody); !errors.Is(err, engine.ErrInterrupted) {
		t.Fatalf("%v", err)
	}
	again, _ := bisected(t, verdicts, versions...)
	var err error
	if again.record, err = readBisection(b.dir); err != nil {
		t.Fatal(err)
	}
	if err := again.begin(); err != nil {
		t.Fatal(err)
	}
	var asked []string
	judge = again.judge
	again.judge = func(ctx context.Context, version string) (bisectionStep, error) {
		asked = append(asked, version)
		return judge(ctx, version)
	}
	if err := again.search(t.Context(), nobody); err != nil {
		t.Fatal(err)
	}
	if want := []string{"1.0.2", "1.0.1"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	if got := again.conclusion(); got != "node-drain, cilium: fixed in 1.0.2; last affected 1.0.1" {
		t.Error(got)
	}
}

// What is not a version's fault ends the search, and is not taken for a skip.
func TestBisectionBreaks(t *testing.T) {
	b, _ := bisected(t, nil, "1.0.0", "1.0.1")
	broken := errors.New("no lab")
	b.judge = func(context.Context, string) (bisectionStep, error) { return bisectionStep{}, broken }
	if err := b.search(t.Context(), nobody); !errors.Is(err, broken) || len(b.record.Steps) > 0 {
		t.Errorf("%v, %+v", err, b.record.Steps)
	}
	b, _ = bisected(t, nil, "1.0.0", "1.0.1")
	err := b.search(t.Context(), func(v string) bool { return v == "1.0.0" })
	if exitStatus(t.Context(), err) != exitUsage || len(b.record.Steps) > 0 {
		t.Errorf("an end that somebody has named is not published: %v", err)
	}
}

func TestCandidates(t *testing.T) {
	releases := images.Releases{Component: "c"}
	for _, v := range strings.Fields("0.9.0 1.0.0 1.0.1 1.1.0-rc1 1.1.0 1.1.1 2.0.0") {
		releases.Versions = append(releases.Versions, images.Release{Version: v})
	}
	builds := func(v string) error {
		unknown := &images.UnknownVersionError{Name: "c", Version: v, Known: []string{"others"}}
		switch v {
		case "0.9.0", "1.0.1", "2.0.0":
			return unknown
		case "0.8.0":
			lacking := *unknown
			lacking.Why = "c has no routes before 0.9.0"
			return errors.Join(unknown, &lacking) // of another image, and of its own
		}
		return nil
	}
	for _, test := range []struct {
		name string
		o    bisectOptions
		want string // versions, or the error
		not  string // those that nothing builds, and why
	}{
		{"all that can be built", bisectOptions{}, "1.0.0 1.0.1 1.1.0 1.1.1", "1.0.1: no recipe builds it"},
		{"with pre-releases", bisectOptions{pre: true}, "1.0.0 1.0.1 1.1.0-rc1 1.1.0 1.1.1", "1.0.1: no recipe builds it"},
		{"from one to another", bisectOptions{from: "1.0.0", to: "1.1.0"}, "1.0.0 1.0.1 1.1.0", "1.0.1: no recipe builds it"},
		{"a pre-release as an end", bisectOptions{from: "1.1.0-rc1"}, "1.1.0-rc1 1.1.0 1.1.1", ""},
		{"an end that nobody lists", bisectOptions{from: "1.0.5", to: "1.1.2"}, "1.0.5 1.1.0 1.1.1 1.1.2", ""},
		{"an end that nothing builds", bisectOptions{from: "0.9.0"}, "no recipe builds c at version 0.9.0; there are others", ""},
		{"an end that lacks what it is about", bisectOptions{from: "0.8.0", to: "1.0.0"}, "0.8.0 0.9.0 1.0.0", "0.8.0: c has no routes before 0.9.0, 0.9.0: no recipe builds it"},
		{"no version", bisectOptions{to: "1.1"}, `--to: "1.1" is no version: expected one such as 1.11.0`, ""},
		{"the same", bisectOptions{from: "1.0.0", to: "1.0.0"}, "--from and --to are both 1.0.0: there is nothing between them", ""},
		{
			"the wrong way round", bisectOptions{from: "1.1.0", to: "1.0.0"},
			"--from 1.1.0 is newer than --to 1.0.0: give the older one as --from; whether the newer one broke it or fixed it is found in either case", "",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			versions, unbuildable, err := candidates(releases, test.o, builds)
			got := strings.Join(versions, " ")
			if err != nil {
				got = err.Error()
				if status := exitStatus(t.Context(), err); status != exitUsage {
					t.Errorf("exit status %d", status)
				}
			}
			var not []string
			for _, v := range slices.SortedFunc(maps.Keys(unbuildable), bisect.Compare) {
				not = append(not, v+": "+unbuildable[v])
			}
			if got != test.want || strings.Join(not, ", ") != test.not {
				t.Errorf("got  %s, and %q cannot be built\nwant %s, and %q", got, not, test.want, test.not)
			}
		})
	}
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
		if got := spans(strings.Fields(some), all); got != want {
			t.Errorf("%s: got %q, want %q", some, got, want)
		}
	}
}

// An end that ran and said nothing is not passed over in silence.
func TestBisectionOfUnjudgedEnd(t *testing.T) {
	b, _ := bisected(t, map[string]string{"1.0.0": "reproduced", "1.0.1": "missed", "1.0.2": "unknown"}, "1.0.0", "1.0.1", "1.0.2")
	if err := b.search(t.Context(), nobody); err != nil {
		t.Fatal(err)
	}
	want := "node-drain, cilium: 1.0.0 and 1.0.1 are alike, and no version beyond them could be judged: affected; not judged: 1.0.2"
	if got := b.conclusion(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
