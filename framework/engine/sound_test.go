package engine

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/framework/verdict"
)

func show(t *testing.T, p played) {
	t.Helper()
	t.Logf("status %d\n%s", p.status(), describe(t, p))
}

// An active finding that comes and goes while a check of a precursor waits is reported.
func TestPrecursorAlarmDuringCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := theFinding
		other.Kind = "other"
		p := testCase{old: func(w *world, s *framework.Script) {
			var asked time.Time
			f := framework.Precursor{
				ID: "unannounced", Name: "not announced", Undone: true,
				Expected: []framework.Finding{framework.As(theFinding)},
				Aftermath: []framework.Check{{ID: "time-passes", Name: "time passes", Bound: 30 * time.Second, Holds: func(context.Context, *framework.Run) (bool, string, error) {
					if asked.IsZero() {
						asked = time.Now()
						after(time.Second, func() { w.finds(theFinding, other) })
						after(3*time.Second, func() { w.finds(theFinding) })
					}
					return time.Since(asked) > 5*time.Second, "not yet", nil
				}}},
				Fault: framework.Fault{Name: "f",
					Inject:     func(context.Context, *framework.Run) error { w.finds(theFinding); return nil },
					TookEffect: holdsNow(true),
					Undo:       func(context.Context, *framework.Run) error { w.finds(); return nil },
				},
			}
			s.Precursors = []framework.Precursor{f}
		}}.play(t)
		show(t, p)
		if p.status() != 1 {
			t.Errorf("an unexpected finding during a precursor: status %d, want 1", p.status())
		}
	})
}

// A panic of an undo ends the run as its error does: no variant follows on that lab.
func TestRestorePanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := false
		p := testCase{
			old: func(w *world, s *framework.Script) {
				s.Fault.Undo = func(context.Context, *framework.Run) error { panic("a bug") }
			},
			new: func(w *world, s *framework.Script) {
				then(&s.Install, func() error { ran = true; return nil })
			},
		}.play(t)
		show(t, p)
		if ran {
			t.Error("the next variant ran on a lab that was not restored")
		}
	})
}

// The same with a version without an expectation on a kept lab, as bisect and qualify
// have it.
func TestRestorePanicsUnclassified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := fakeScenario(w)
		s.Variants = s.Variants[:1]
		s.Variants[0].Role = framework.Unclassified
		script := s.Variants[0].Script
		s.Variants[0].Script = func() framework.Script {
			made := script()
			made.Fault.Undo = func(context.Context, *framework.Run) error { panic("a bug") }
			return made
		}
		p := play(t, w, s, &fakeLabs{}, Options{Keep: true})
		show(t, p)
		r, _ := p.Report()
		if p.Broken() == nil || r.Verdict == "pass" {
			t.Errorf("the lab is not restored, and the run is %s, broken: %v, released %d (kept for the next version)", r.Verdict, p.Broken(), p.labs.released)
		}
	})
}

// The same with parallel variants: the variant does not run again on its node.
func TestRestorePanicsInParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		installs := 0
		p := testCase{beside: true, options: Options{Repeat: 2}, new: func(w *world, s *framework.Script) {
			s.Fault.Undo = func(context.Context, *framework.Run) error { panic("a bug") }
			then(&s.Install, func() error { installs++; return nil })
		}}.play(t)
		show(t, p)
		if installs > 1 {
			t.Errorf("%d runs on a node that was not restored", installs)
		}
	})
}

// A check that returns an error does not hold.
func TestHoldsWithError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := testCase{old: func(w *world, s *framework.Script) {
			c := framework.Check{ID: "not-ready", Name: "it is not ready", Holds: func(context.Context, *framework.Run) (bool, string, error) {
				ready := false // the zero value: the list of pods could not be read
				return !ready, "", errBroken
			}}
			s.Aftermath = []framework.Check{c}
		}}.play(t)
		show(t, p)
		if p.status() == 0 {
			t.Error("a check that could not be read holds")
		}
	})
}

// A fault whose effect could not be read did not take effect.
func TestEffectWithError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := testCase{new: func(w *world, s *framework.Script) {
			s.Fault.Inject = func(context.Context, *framework.Run) error { return nil }
			s.Fault.TookEffect = func(context.Context, *framework.Run) (bool, string, error) {
				same := false
				return !same, "the old pod runs", errBroken
			}
		}}.play(t)
		show(t, p)
		if p.status() == 0 {
			t.Error("a fault whose effect could not be read took effect")
		}
	})
}

// The ablation of a remedy fails if traffic recovers without it, also if findings stay
// active.
func TestAblatedRemedyRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		injections := 0
		p := testCase{options: Options{Ablate: AblateAll, Variants: []string{"old"}}, old: func(w *world, s *framework.Script) {
			s.Remedies = s.Remedies[2:]
			inject := s.Fault.Inject
			s.Fault.Inject = func(ctx context.Context, r *framework.Run) error {
				if injections++; injections == 2 { // the run without the remedy
					after(12*time.Second, func() { w.heals(); w.finds(theFinding) })
				}
				return inject(ctx, r)
			}
		}}.play(t)
		show(t, p)
		if p.status() == 0 {
			t.Error("traffic comes back with the remedy switched off, and the ablation passes")
		}
	})
}

// The stored half of a killed run is inconclusive.
func TestJudgeOfKilledRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := fakeScenario(w)
		p := play(t, w, s, &fakeLabs{}, Options{})
		r, err := report.Read(filepath.Join(p.Dir(), "report.json"))
		if err != nil {
			t.Fatal(err)
		}
		// As publish leaves it: the second variant has not begun.
		r.Variants, r.Verdict = r.Variants[:1], "inconclusive"
		r.Unfinished = &report.Unfinished{At: time.Now(), Steps: []string{"old: lab is restored"}}
		if err := r.Write(p.Dir()); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(p.Dir(), "evidence", "new")); err != nil {
			t.Fatal(err)
		}
		again, err := judgeAgain(p.Dir(), s)
		if err != nil {
			t.Fatal(err)
		}
		if again.Report.Verdict == "pass" {
			t.Errorf("half of a run that was killed is judged %s; not on record %q", again.Report.Verdict, again.NotOnRecord)
		}
	})
}

// A lab that was not restored makes a run inconclusive, also when it is judged again
// (play compares the two).
func TestJudgeOfRunNotRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := testCase{options: Options{Keep: true}, new: func(w *world, s *framework.Script) {
			s.Fault.Undo = func(context.Context, *framework.Run) error { return errBroken }
		}}.play(t)
		show(t, p)
	})
}

// A variant whose pods run another image than the one that was built is unknown.
func TestImagesThatRan(t *testing.T) {
	const image, built, other = "quay.io/vendor/agent:v1", "sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	pods := func(id string) snapshot.List[snapshot.PodImages] {
		return snapshot.List[snapshot.PodImages]{Read: true, Items: []snapshot.PodImages{{Name: "agent", Containers: []snapshot.RunningContainer{
			{Container: snapshot.Container{Image: image}, ImageID: id},
		}}}}
	}
	for name, test := range map[string]struct {
		running snapshot.List[snapshot.PodImages]
		status  int
		reason  string
	}{
		"the one that was built": {pods("quay.io/vendor/agent@" + built), 0, ""},
		"not created":            {pods(""), 0, ""},
		"another tag's, which was built for another variant": {
			snapshot.List[snapshot.PodImages]{Read: true, Items: []snapshot.PodImages{{Name: "agent", Containers: []snapshot.RunningContainer{
				{Container: snapshot.Container{Image: "quay.io/vendor/agent:v2"}, ImageID: "quay.io/vendor/agent@" + other},
			}}}}, 0, "",
		},
		"a tag that was moved to it": {
			snapshot.List[snapshot.PodImages]{Read: true, Items: []snapshot.PodImages{{Name: "agent", Containers: []snapshot.RunningContainer{
				{Container: snapshot.Container{Image: "quay.io/vendor/agent"}, ImageID: "quay.io/vendor/agent@" + other},
			}}}}, 0, "",
		},
		"another one":             {pods("quay.io/vendor/agent@" + other), 4, image + " has the digest " + other},
		"a digest of its content": {pods(other), 4, "a node does not report the digest"},
		"not read":                {snapshot.List[snapshot.PodImages]{Error: "no answer"}, 4, "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				s := fakeScenario(w)
				for i := range s.Variants {
					s.Variants[i].Images = []string{image}
				}
				p := play(t, w, s, &fakeLabs{digests: map[string]string{image: built, "quay.io/vendor/agent:v2": other}, running: test.running}, Options{})
				r, _ := p.Report()
				if p.status() != test.status || !strings.Contains(strings.Join(r.Variants[0].Reasons, "; "), test.reason) {
					t.Errorf("status %d, want %d\n%s", p.status(), test.status, describe(t, p))
				}
			})
		})
	}
}

// A remedy after which every second packet is lost does not recover, whatever MinOutage
// excuses.
func TestRemedyOfHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := testCase{old: func(w *world, s *framework.Script) {
			s.MinOutage = 500 * time.Millisecond
			s.Remedies = []framework.Remedy{{ID: "half", Name: "half", Helps: true, Bound: 10 * time.Second, Apply: func(context.Context, *framework.Run) error {
				w.heals()
				after(1500*time.Millisecond, func() { w.alternates(outToA) })
				return nil
			}}}
		}}.play(t)
		if p.status() == 0 {
			t.Error("every second packet is lost after the remedy, and it recovers")
		}
	})
}

// A remedy that does not help lets packets through only in an incident that costs a share of
// them, and must leave losses to the end. Traffic decides that: in the cases without heals the
// detectors go on reporting.
func TestUselessRemedyOfPartialIncident(t *testing.T) {
	arrive := func(w *world) { w.do(func() { w.lost[outToA] = false }) }
	for _, tt := range []struct {
		name    string
		partial bool
		shares  bool // every other packet is lost until the world heals
		apply   func(w *world)
		want    string
	}{
		{name: "the share goes on being lost", partial: true, shares: true, apply: func(*world) {}, want: verdict.DoesNotHelp},
		{name: "it helps", partial: true, apply: func(w *world) { w.heals() }, want: verdict.Recovers},
		{name: "it helps after a second", partial: true, shares: true, apply: func(w *world) { after(time.Second, w.heals) }, want: verdict.Recovers},
		{name: "it helps, and a stray packet is lost", partial: true, apply: func(w *world) {
			arrive(w)
			after(3*time.Second, func() { w.do(func() { w.lost[outToA] = true }) })
			after(3*time.Second+sendsEvery, func() { arrive(w) })
		}, want: verdict.Recovers},
		{name: "it helps, and the sender is silent then", partial: true, apply: func(w *world) {
			arrive(w)
			after(1800*time.Millisecond, func() { w.stopsSending(outToA) })
		}, want: verdict.Unjudged},
		{name: "in an incident that costs all of them", shares: true, apply: func(*world) {}, want: verdict.Recovers},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := testCase{old: func(w *world, s *framework.Script) {
					s.Partial = tt.partial
					s.Remedies = []framework.Remedy{
						{ID: "useless", Name: "useless", Watch: 4 * time.Second, Apply: func(context.Context, *framework.Run) error {
							tt.apply(w)
							for i := range 200 {
								after(time.Duration(i)*sendsEvery, func() {
									w.do(func() {
										if tt.shares && len(w.found) > 0 {
											w.lost[outToA] = i%2 == 0
										}
									})
								})
							}
							return nil
						}},
					}
				}}.play(t)
				r, _ := p.Report()
				if got := r.Variants[0].Remedies[0].Verdict; got != tt.want || (p.status() == 0) != (tt.want == verdict.DoesNotHelp) {
					t.Errorf("status %d, remedy %s, want %s; %s", p.status(), got, tt.want, p)
				}
			})
		})
	}
}

// A variant whose images under test did not run is unknown.
func TestNoImageUnderTest(t *testing.T) {
	const image, built = "quay.io/vendor/agent:v2", "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	const old, oldBuilt = "quay.io/vendor/agent:v1", "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	for name, running := range map[string][]snapshot.PodImages{
		"none": nil,
		"the affected version's alone": {{Name: "agent", Containers: []snapshot.RunningContainer{
			{Container: snapshot.Container{Image: old}, ImageID: "quay.io/vendor/agent@" + oldBuilt},
		}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			s := fakeScenario(w)
			s.Variants[0].Images, s.Variants[1].Images = []string{old}, []string{image}
			s.Variants[1].Components = map[string]string{"agent": "2"}
			p := play(t, w, s, &fakeLabs{digests: map[string]string{image: built, old: oldBuilt}, running: snapshot.List[snapshot.PodImages]{Read: true, Items: running}}, Options{})
			r, _ := p.Report()
			if p.status() == 0 {
				t.Errorf("%s: no pod ran the fixed version, and it is %s", name, r.Variants[1].Verdict)
			}
		})
	}
}

// A version is not refused if another image than the one that was built refuses.
func TestRefusedByAnotherImage(t *testing.T) {
	const image, built, other = "quay.io/vendor/agent:v1", "sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := fakeScenario(w)
		s.Variants = s.Variants[:1]
		s.Variants[0].Role, s.Variants[0].Images = framework.Unclassified, []string{image}
		script := s.Variants[0].Script
		s.Variants[0].Script = func() framework.Script {
			made := script()
			then(&made.Install, func() error { return errBroken })
			made.Refuses = func(context.Context, *framework.Run) (string, error) { return "no such option", nil }
			return made
		}
		running := snapshot.List[snapshot.PodImages]{Read: true, Items: []snapshot.PodImages{{Name: "agent", Containers: []snapshot.RunningContainer{
			{Container: snapshot.Container{Image: image}, ImageID: "quay.io/vendor/agent@" + other},
		}}}}
		p := play(t, w, s, &fakeLabs{digests: map[string]string{image: built}, running: running}, Options{})
		r, _ := p.Report()
		if r.Variants[0].Verdict == "refused" {
			t.Error("another image than the one that was built refuses, and the version is refused (not affected)")
		}
	})
}

// An outage of a probe that must lose nothing counts at the end of the observation as well.
func TestOutageAtTheEnd(t *testing.T) {
	for _, begins := range []time.Duration{95200 * time.Millisecond, 97 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			p := testCase{new: func(w *world, s *framework.Script) {
				s.MinOutage, s.Observe = 5*time.Second, 104700*time.Millisecond
				onInject(func(w *world) { after(begins, func() { w.loses(outToB) }) })(w, s)
			}}.play(t)
			if p.status() == 0 {
				t.Errorf("a probe that must lose nothing is cut off for good, for %s, and the run passes", 104700*time.Millisecond-begins)
			}
		})
	}
}

// A variant whose lab was not isolated for a time is unknown, also if all else is as
// expected.
func TestIsolationLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := testCase{old: onInject(func(w *world) {
			w.breaks(outToA)
			w.leaks("nftables table relapse-fake has 0 of 4 rules")
			after(time.Second, func() { w.leaks("") })
		})}.play(t)
		r, _ := p.Report()
		if v := r.Variants[0]; p.status() != 4 || v.Verdict != "unknown" || !strings.Contains(strings.Join(v.Reasons, "; "), "isolation of the lab: nftables table") {
			t.Errorf("status %d\n%s", p.status(), describe(t, p))
		}
	})
}
