package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/report"
)

// newVariant is a variant that has not begun, with a part switched off.
func newVariant(role framework.Role, ablate Part) *variantRun {
	e := &Execution{options: Options{}.withDefaults()}
	v := newVariantRun(e, framework.Variant{Name: "v", Role: role, Script: func() framework.Script { return framework.Script{} }})
	v.ablate = ablate
	return v
}

// A variant that never ran must not look like one that nothing happened to.
func TestVariantThatDidNotRunIsUnknown(t *testing.T) {
	for _, role := range []framework.Role{framework.Affected, framework.Fixed} {
		v := newVariant(role, "")
		v.judge()
		if v.result.Verdict != string(framework.Unknown) || v.outcome() != framework.Inconclusive {
			t.Errorf("%s: %s, %s", role, v.result.Verdict, v.outcome())
		}
	}
}

func TestChecks(t *testing.T) {
	fact := func(holds bool, saw string, err error) framework.Check {
		return framework.Check{Name: "fact", Holds: func(context.Context, *framework.Run) (bool, string, error) { return holds, saw, err }}
	}
	late := framework.Check{Name: "fact", Bound: time.Minute, Holds: func() func(context.Context, *framework.Run) (bool, string, error) {
		looks := 0
		return func(context.Context, *framework.Run) (bool, string, error) {
			looks++
			return looks == 3, "not yet", nil
		}
	}()}
	asking := fact(false, "no finding", nil)
	asking.AsksDetectors = true
	for _, test := range []struct {
		name     string
		check    framework.Check
		ablate   Part
		baseline string // why the baseline is bad; empty: it is good
		reported []report.Check
	}{
		{"holds", fact(true, "", nil), "", "", []report.Check{{Name: "fact", Holds: true}}},
		{"comes true", late, "", "", []report.Check{{Name: "fact", Holds: true}}},
		{
			"does not hold", fact(false, "they agree", nil), "",
			"fact: not as expected: they agree", []report.Check{{Name: "fact", Reason: "they agree"}},
		},
		{
			"asks the detectors", asking, "",
			"fact: not as expected: no finding", []report.Check{{Name: "fact", Reason: "no finding"}},
		},
		{"asks the detectors, which are off", asking, AblateDetector, "", nil},
		{
			"asks the detectors, and the fault is off", asking, AblateFault,
			"fact: not as expected: no finding", []report.Check{{Name: "fact", Reason: "no finding"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := newVariant(framework.Affected, test.ablate)
			err := v.checkBaseline(test.check)(t.Context())
			if (err != nil) != (test.baseline != "") || err != nil && !errors.Is(err, errNotAsExpected) {
				t.Errorf("%v", err)
			}
			if v.seen.baseline != test.baseline || v.ended != (test.baseline != "") {
				t.Errorf("baseline %q, ended %v; want %q", v.seen.baseline, v.ended, test.baseline)
			}
			if diff := cmp.Diff(test.reported, v.result.Checks); diff != "" {
				t.Errorf("reported (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("what cannot be looked at is not known to be wrong", func(t *testing.T) {
		v := newVariant(framework.Affected, "")
		err := v.checkBaseline(fact(false, "", errBroken))(t.Context())
		if !errors.Is(err, errBroken) || errors.Is(err, errNotAsExpected) || v.seen.baseline != "" {
			t.Errorf("%v, baseline %q", err, v.seen.baseline)
		}
		want := []report.Check{{Name: "fact", Reason: "not known: it is broken"}}
		if diff := cmp.Diff(want, v.result.Checks); diff != "" {
			t.Errorf("reported (-want +got):\n%s", diff)
		}
	})
	t.Run("after the fault it is no bad baseline", func(t *testing.T) {
		v := newVariant(framework.Affected, "")
		if err := v.check(fact(false, "too much is gone", nil))(t.Context()); !errors.Is(err, errNotAsExpected) {
			t.Error(err)
		}
		if v.seen.baseline != "" || v.ended {
			t.Errorf("baseline %q, ended %v", v.seen.baseline, v.ended)
		}
	})
}

func TestFindingsAreReportedOnce(t *testing.T) {
	v := newVariant(framework.Affected, "")
	lost, swapped := found("lost", "a", detect.Active), found("swapped", "b", detect.Latent)
	swapped.Owner, swapped.Announcer, swapped.Routers, swapped.Pods = "node1", "node2", []string{"tor1"}, []string{"default/web"}
	v.addFinding(swapped, "baseline", nil, nil, nil)
	elsewhere := swapped
	elsewhere.Announcer = "node3" // another one that says so is another finding
	v.addFinding(elsewhere, "baseline", nil, nil, nil)
	onset := time.Now()
	v.result.Onset = &onset
	fault := func(f detect.Finding, at time.Duration) {
		s := sighting{f, onset.Add(at)}
		v.addFinding(f, "fault", nil, new(time.Second+at), v.sinceOnset(s))
	}
	fault(swapped, 0) // known from the baseline
	fault(lost, 412*time.Millisecond)
	reworded := lost
	reworded.Says = "the same in other words"
	fault(reworded, time.Minute)
	fault(found("lost", "c", detect.Active), -500*time.Millisecond) // before the first lost packet
	fault(found("swapped", "d", detect.Latent), time.Second)        // no alarm
	want := []report.Finding{
		{
			Detector: "said", Kind: "swapped", State: "latent", Object: "b", Owner: "node1", Announcer: "node2",
			Routers: []string{"tor1"}, Pods: []string{"default/web"}, Says: "swapped b", During: "baseline",
		},
		{
			Detector: "said", Kind: "swapped", State: "latent", Object: "b", Owner: "node1", Announcer: "node3",
			Routers: []string{"tor1"}, Pods: []string{"default/web"}, Says: "swapped b", During: "baseline",
		},
		{Detector: "said", Kind: "lost", State: "active", Object: "a", Says: "lost a", During: "fault", CameMS: new(int64(1412)), TimeToDetectMS: new(int64(412))},
		{Detector: "said", Kind: "lost", State: "active", Object: "c", Says: "lost c", During: "fault", CameMS: new(int64(500))},
		{Detector: "said", Kind: "swapped", State: "latent", Object: "d", Says: "swapped d", During: "fault", CameMS: new(int64(2000))},
	}
	if diff := cmp.Diff(want, v.result.Findings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A run of which something cannot be kept ends, and is no proof of anything.
func TestEvidenceThatCannotBeKept(t *testing.T) {
	v := newVariant(framework.Affected, "")
	v.evidence.Dir = "/dev/null/evidence"
	v.keep("log", "text")
	v.keep("log", "text")
	if len(v.result.Reasons) != 2 || !strings.Contains(v.result.Reasons[0], "evidence") {
		t.Errorf("reasons %q", v.result.Reasons)
	}
	err := v.scenario.Broken()
	if err == nil || !strings.HasPrefix(err.Error(), "the run could not be stored: ") || !v.scenario.lost {
		t.Errorf("broken: %v, lost %t", err, v.scenario.lost)
	}
	if got := v.scenario.verdict(); got != framework.Inconclusive {
		t.Errorf("verdict %s", got)
	}
}

func TestTakeBack(t *testing.T) {
	tests := []struct {
		name   string
		form   framework.LesserForm
		ablate Part
		after  []detect.Finding // what the detectors say once it is undone
		undone bool
		want   string
	}{
		{name: "it stays", form: framework.LesserForm{}},
		{name: "it goes", form: framework.LesserForm{TakenBack: true}, undone: true},
		{name: "it was never there", form: framework.LesserForm{TakenBack: true}, ablate: AblateFault},
		{
			name: "the detectors go on", form: framework.LesserForm{TakenBack: true}, undone: true,
			after: []detect.Finding{found("lost", "a", detect.Active)}, want: "taken back, but ",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			watching(t, func(t *testing.T, w *watch, d *said) {
				d.says(found("mixed", "b", detect.Active))
				looks(1)
				v := newVariant(framework.Workaround, tt.ablate)
				v.watch = w
				undone := false
				f := fault.Fault{Undo: func(context.Context) error {
					undone = true
					d.says(tt.after...)
					return nil
				}}
				v.injected = []fault.Fault{{Name: "before"}, f}
				err := v.takeBack(t.Context(), tt.form, f)
				if undone != tt.undone || len(v.injected) != 2 && !undone {
					t.Errorf("undone: %v, want %v; %d faults to be undone", undone, tt.undone, len(v.injected))
				}
				if undone && len(v.injected) != 1 {
					t.Errorf("%d faults to be undone, want what was before", len(v.injected))
				}
				if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %q", err, tt.want)
				}
			})
		})
	}
}

// What installing the next variant replaces is undone in no other lab than one that is
// kept, by the last variant.
func TestReplaced(t *testing.T) {
	for _, tt := range []struct {
		name     string
		replaced bool
		keep     bool
		undone   []int // for each variant
	}{
		{"by nothing", false, false, []int{1, 0}},
		{"by nothing, in a lab that is kept", false, true, []int{1, 1}},
		{"by the next", true, false, []int{0, 0}},
		{"by the next, in a lab that is kept", true, true, []int{0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				s := fakeScenario(w)
				undone := make([]int, len(s.Variants))
				for i := range s.Variants {
					script := s.Variants[i].Script
					s.Variants[i].Script = func() framework.Script {
						made := script()
						faultThen(&made, func(f *fault.Fault) {
							undo := f.Undo
							f.Replaced = tt.replaced
							f.Undo = func(ctx context.Context) error { undone[i]++; return undo(ctx) }
						})
						return made
					}
				}
				p := play(t, w, s, &fakeLabs{}, Options{Keep: tt.keep})
				if !slices.Equal(undone, tt.undone) || p.report.Verdict != string(framework.Pass) {
					t.Errorf("%s; undone %v, want %v", p.report.Verdict, undone, tt.undone)
				}
			})
		})
	}
}
