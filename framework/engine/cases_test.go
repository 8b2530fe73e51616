package engine

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/ginkgo/v2/reporters"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/junit"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

var update = flag.Bool("update", false, "write the golden files")

type change = func(*world, *framework.Script)

type testCase struct {
	name string
	// old and new change the scripts of the two variants.
	old, new change
	beside   bool // the variants have nodes of their own, and a third one is there
	remedies bool // the remedies are tried
	labs     fakeLabs
	options  Options
	refused  bool // the fixed variant is to refuse to start
	status   int
}

func then(step *framework.Action, more func() error) {
	first := *step
	*step = func(ctx context.Context, r *framework.Run) error { return errors.Join(first(ctx, r), more()) }
}

func before(step *framework.Action, do func()) {
	rest := *step
	*step = func(ctx context.Context, r *framework.Run) error { do(); return rest(ctx, r) }
}

func all(changes ...change) change {
	return func(w *world, s *framework.Script) {
		for _, c := range changes {
			c(w, s)
		}
	}
}

func aftermath(facts ...framework.Check) change {
	return func(_ *world, s *framework.Script) { s.Aftermath = facts }
}

// askedUnavailable makes the sources unavailable for a time, and then makes a check that needs them.
func askedUnavailable(lasting time.Duration) change {
	return func(w *world, s *framework.Script) {
		s.Aftermath = []framework.Check{
			{ID: "they-become-unavailable", Name: "they become unavailable", Holds: passing(-1, func() { unreadFor(lasting)(w) })},
			{ID: "there-are-nodes", Name: "there are nodes", Reads: []snapshot.Source{snapshot.Nodes},
				Holds: func(_ context.Context, r *framework.Run) (bool, string, error) {
					return len(r.Snapshot().Nodes.Items) > 0, "none", nil
				}},
		}
	}
}

// passing holds when a time has passed since it was first asked. The first call calls first.
func passing(lasts time.Duration, first func()) framework.Condition {
	var asked time.Time
	return func(context.Context, *framework.Run) (bool, string, error) {
		if asked.IsZero() {
			asked = time.Now()
			first()
		}
		return time.Since(asked) > lasts, "not yet", nil
	}
}

// precursor adds a harmless precursor that does something.
func precursor(do func(*world), edit func(*framework.Precursor)) change {
	return func(w *world, s *framework.Script) {
		f := framework.Fault{Name: "silence", Inject: doing(func() { do(w) }), TookEffect: holdsNow(true), Undo: doing(w.heals)}
		s.Precursors = []framework.Precursor{{ID: "not-announced", Name: "not announced", Fault: f}}
		edit(&s.Precursors[0])
	}
}

func finding(p *framework.Precursor) { p.Expected = []framework.Finding{framework.As(theFinding)} }

func asserting(holds framework.Condition) func(*framework.Precursor) {
	return func(p *framework.Precursor) {
		p.Aftermath = []framework.Check{{Name: "the route is there", Holds: holds}}
	}
}

// unread stops all sources from answering, unreadFor for a time.
func unread(w *world) { w.losesSources("no answer within 1s") }

func unreadFor(d time.Duration) func(*world) {
	return func(w *world) {
		unread(w)
		runAfter(d, func() { w.losesSources("") })
	}
}

func installing(do func(*world)) change {
	return func(w *world, s *framework.Script) { then(&s.Install, func() error { do(w); return nil }) }
}

// sourcesBack makes sources available that the variant before has lost.
var sourcesBack = installing(func(w *world) { w.losesSources("") })

func applying(remedy int, do func(*world)) change {
	return func(w *world, s *framework.Script) { s.Remedies[remedy].Apply = doing(func() { do(w) }) }
}

func applied(remedy int, more func(*world)) change {
	return func(w *world, s *framework.Script) {
		then(&s.Remedies[remedy].Apply, func() error { more(w); return nil })
	}
}

func expecting(edit func(*framework.Finding)) change {
	return func(_ *world, s *framework.Script) { edit(&s.Expected[0]) }
}

func doing(do func()) framework.Action {
	return func(context.Context, *framework.Run) error { do(); return nil }
}

var (
	nothing   = doing(func() {})
	untouched = func(*world) {}
	breaking  = func(context.Context, *framework.Run) error { return errBroken }
	broken    = func() error { return errBroken }
)

// observing sets MinOutage, and how long effects of the fault are observed (0: as before).
func observing(minOutage, lasting time.Duration, do func(*world)) change {
	return func(w *world, s *framework.Script) {
		s.MinOutage, s.Observe = minOutage, cmp.Or(lasting, s.Observe)
		onInject(do)(w, s)
	}
}

func says(holds bool, saw string) framework.Condition {
	return func(context.Context, *framework.Run) (bool, string, error) { return holds, saw, nil }
}

// unseen is a condition that cannot be checked.
func unseen(holds bool, saw string) framework.Condition {
	return func(context.Context, *framework.Run) (bool, string, error) { return holds, saw, errBroken }
}

func refuses(why string) change {
	return func(_ *world, s *framework.Script) {
		s.Refuses = func(context.Context, *framework.Run) (string, error) { return why, nil }
	}
}

// ineffective has the fault take no effect, and uninstalled has the installation fail.
func ineffective(_ *world, s *framework.Script) { s.Fault.TookEffect = holdsNow(false) }
func uninstalled(_ *world, s *framework.Script) { then(&s.Install, broken) }

func race(rounds int, occurred bool) change {
	return func(_ *world, s *framework.Script) {
		s.Trials = &framework.Trials{
			Unit: "tick", Rates: framework.Rates{"": {{Trials: 1, Occurred: true, Count: 43}, {Trials: 3, Occurred: true, Count: 2}}},
			Result: func() (int, bool) { return rounds, occurred },
		}
	}
}

func onInject(do func(*world)) change {
	return func(w *world, s *framework.Script) {
		s.Fault.Inject = doing(func() { do(w) })
		s.Fault.TookEffect = holdsNow(true)
	}
}

// survives makes the fault a race with rounds of a length. The incident occurs in round strikes, if as many are due.
func survives(strikes int, round time.Duration) change {
	return func(w *world, s *framework.Script) {
		rounds := 0
		s.Trials = &framework.Trials{
			// With this rate one round convinces: the slowest affected variant decides.
			Unit: "minute", Rates: framework.Rates{"": {{Trials: 1, Occurred: true, Count: 400}}},
			Result: func() (int, bool) { return rounds, rounds == strikes },
		}
		inject := s.Fault.Inject
		s.Fault.Inject = func(ctx context.Context, r *framework.Run) error {
			for rounds < min(strikes, r.TrialsDue()) {
				time.Sleep(round)
				rounds++
			}
			return inject(ctx, r)
		}
	}
}

func holdsNow(holds bool) framework.Condition {
	return says(holds, "nothing has changed")
}

func undoing(undo func() error) change {
	return func(_ *world, s *framework.Script) {
		s.Fault.Undo = func(context.Context, *framework.Run) error { return undo() }
	}
}

// cutOffAfter cuts off an unaffected probe for good, some time after the fault.
func cutOffAfter(begins time.Duration) change {
	return observing(5*time.Second, 14700*time.Millisecond, func(w *world) { runAfter(begins, func() { w.loses(outToB) }) })
}

func testCases() []testCase {
	latent, settling, other := theFinding, theFinding, theFinding
	latent.State, settling.State, other.Kind = detect.Latent, detect.Pending, "other"
	return []testCase{
		{name: "all as expected", remedies: true, status: 0},
		{name: "the affected version is not affected", status: 1, old: onInject(untouched)},
		{name: "no detector says why", status: 1, old: onInject(func(w *world) { w.loses(outToA) })},
		{name: "the fixed version is not fixed", remedies: true, status: 1, new: func(w *world, s *framework.Script) { *s = w.affected(); s.Remedies = nil }},
		{name: "the detectors name something else", status: 1, old: expecting(func(f *framework.Finding) { f.Object = detect.Named("b") })},
		{name: "an alarm without loss", status: 4, old: onInject(func(w *world) { w.finds(theFinding) })},
		{name: "other probes lose packets as well", status: 4, old: onInject(func(w *world) { w.breaks(outToA, aToB) })},
		{name: "packets are lost before the fault", status: 4, old: installing(func(w *world) { w.loses(outToB) })},
		{name: "an alarm before the fault", status: 4, old: installing(func(w *world) { w.finds(theFinding) })},
		{name: "an unexpected latent finding before the fault", status: 4, old: installing(func(w *world) { w.finds(latent) })},
		{name: "a latent finding before the fault that is expected", status: 0, old: all(
			func(_ *world, s *framework.Script) { s.Latent = []framework.Finding{framework.As(latent)} },
			installing(func(w *world) { w.finds(latent) }))},
		{name: "a source that is unavailable before the fault", status: 4, old: installing(unread), new: sourcesBack},
		{name: "a source that becomes unavailable with the fault", status: 4,
			old: onInject(func(w *world) { w.breaks(outToA); unread(w) }), new: sourcesBack},
		{name: "sources that are unavailable for half a minute after the fault", status: 0,
			old: onInject(func(w *world) { w.breaks(outToA); unreadFor(30 * time.Second)(w) })},
		{name: "an installation that breaks", status: 4, old: uninstalled},
		{name: "a fault that breaks", status: 4, old: func(_ *world, s *framework.Script) { s.Fault.Inject = breaking }},
		{name: "a fault that does not take hold", status: 4, old: ineffective},
		{name: "a fact that does not hold before the fault", status: 4, old: func(_ *world, s *framework.Script) {
			s.Baseline = []framework.Check{{Name: "they differ", Holds: says(false, "they agree")}}
		}},
		{name: "a fact that does not hold after the fault", status: 1, old: aftermath(
			framework.Check{ID: "the-route-is-gone", Name: "the route is gone", Holds: says(false, "it is there"), Bound: time.Second},
			framework.Check{ID: "the-others-are-there", Name: "the others are there", Holds: says(true, "")})},
		{name: "a fact after the fault that cannot be looked at", status: 4,
			old: aftermath(framework.Check{Name: "the route is gone", Bound: time.Second, Holds: unseen(true, "")})},
		{name: "a fact that is asked while a source is unavailable for a moment", status: 0, old: askedUnavailable(600 * time.Millisecond)},
		{name: "a fact that is asked of a source that has become unavailable", status: 4, old: askedUnavailable(time.Hour), new: sourcesBack},
		{name: "a fact after the fault that can be looked at in the end", status: 0,
			old: func(w *world, s *framework.Script) {
				looks := 0
				s.Aftermath = []framework.Check{{Name: "the route is gone", Bound: time.Second,
					Holds: func(context.Context, *framework.Run) (bool, string, error) {
						if looks++; looks < 3 {
							return false, "", errBroken
						}
						return true, "", nil
					}}}
			}},
		{name: "a precursor after which a fact does not hold", status: 1, old: precursor(untouched, asserting(says(false, "it is gone")))},
		{name: "a precursor after which a fact cannot be looked at", status: 4, old: precursor(untouched, asserting(unseen(false, "")))},
		{name: "a precursor that comes as it must, and is taken back", status: 0,
			old: precursor(func(w *world) { w.finds(theFinding) }, func(p *framework.Precursor) { finding(p); p.Undone = true })},
		{name: "a precursor that costs packets", status: 4, old: all(
			precursor(func(w *world) { w.breaks(outToB) }, finding), onInject(func(w *world) { w.heals(); w.breaks(outToA) }))},
		{name: "a remedy that does nothing", remedies: true, status: 1, old: applying(2, untouched)},
		{name: "a remedy that helps although it should not", remedies: true, status: 1,
			old: func(w *world, s *framework.Script) {
				s.Remedies[0].Apply = s.Remedies[1].Apply
				s.Remedies = s.Remedies[:1]
			}},
		{name: "a remedy that brings traffic back and no silence", remedies: true, status: 1,
			old: applying(2, func(w *world) { w.heals(); w.finds(theFinding) })},
		{name: "a remedy that breaks", remedies: true, status: 4,
			old: func(w *world, s *framework.Script) { then(&s.Remedies[1].Apply, broken) }},
		{name: "a remedy whose undoing breaks", remedies: true, status: 4,
			old: func(w *world, s *framework.Script) { then(&s.Remedies[1].Undo, broken) }},
		{name: "a remedy whose undoing does not bring the symptom back", remedies: true, status: 4,
			old: func(_ *world, s *framework.Script) { s.Remedies[1].Undo = nothing }},
		{name: "a lab that heals by itself before the remedies", remedies: true, status: 4, old: func(w *world, s *framework.Script) {
			s.Aftermath = []framework.Check{{Name: "time passes", Holds: passing(-1, w.heals)}}
		}},
		{name: "an end that the fault takes away", status: 0, old: func(w *world, s *framework.Script) {
			s.Gone = s.Endpoints[2:]
			onInject(func(w *world) { w.breaks(outToA, outToB) })(w, s)
		}},
		{name: "a source that stops answering in the fixed version", status: 4,
			new: onInject(func(w *world) { runAfter(2*time.Second, func() { unread(w) }) })},
		{name: "a source that does not answer now and then in the fixed version", status: 4, new: onInject(func(w *world) {
			for i := range 50 {
				runAfter(time.Duration(2*i)*time.Second, func() { unreadFor(300 * time.Millisecond)(w) })
			}
		})},
		{name: "a source that dies with the remedy", remedies: true, status: 4, old: applied(1, unread), new: sourcesBack},
		{name: "an agent that stops in the fixed version, and is stopped for good", status: 4,
			new: onInject(func(w *world) { w.freezes("out") })},
		{name: "a pending alarm in the fixed version", status: 4, new: onInject(func(w *world) { w.finds(settling) })},
		{name: "a pending alarm before the fault that disappears", status: 0,
			old: installing(func(w *world) { w.finds(settling); runAfter(3*time.Second, func() { w.finds() }) })},
		{name: "another probe loses packets two seconds after the first", status: 4,
			old: onInject(func(w *world) { w.breaks(outToA); runAfter(2*time.Second, func() { w.loses(outToB) }) })},
		{name: "a probe loses packets in the fixed version while facts are asserted", status: 1, new: all(
			func(_ *world, s *framework.Script) {
				s.Aftermath = []framework.Check{{Name: "time passes", Bound: time.Minute, Holds: passing(30*time.Second, func() {})}}
			},
			onInject(func(w *world) { runAfter(15*time.Second, func() { w.loses(outToA) }) }))},
		{name: "an unexpected alarm besides", status: 1, old: onInject(func(w *world) { w.loses(outToA); w.finds(theFinding, other) })},
		{name: "an alarm that is named as one that may pass", status: 0, old: all(
			func(_ *world, s *framework.Script) { s.Transient = []framework.Finding{framework.As(other)} },
			onInject(func(w *world) { w.loses(outToA); w.finds(theFinding, other) }))},
		{name: "a latent finding that is named and does not come", status: 4,
			old: func(w *world, s *framework.Script) { s.Latent = []framework.Finding{framework.As(latent)} }},
		{name: "every second packet of the fixed version is lost, which is no outage", status: 4,
			new: observing(500*time.Millisecond, 0, func(w *world) { w.alternates(outToA) })},
		{name: "every second packet of the affected version is lost, which is no outage", status: 4,
			old: observing(500*time.Millisecond, 0, func(w *world) { w.alternates(outToA) })},
		{name: "every second packet of another probe is lost, which is no outage", status: 4,
			old: observing(500*time.Millisecond, 0, func(w *world) { w.breaks(outToA); w.alternates(outToB) })},
		{name: "an outage of another probe, as long as half of one that counts", status: 0,
			old: observing(time.Second, 8*time.Second, func(w *world) {
				w.breaks(outToA)
				runAfter(time.Second, func() { w.loses(outToB) })
				runAfter(time.Second+500*time.Millisecond, func() { w.do(func() { w.lost[outToB] = false }) })
			})},
		{name: "a sender that sends nothing for two seconds of half a minute", status: 4, new: observing(0, 30*time.Second, func(w *world) {
			runAfter(5*time.Second, func() { w.stopsSending(outToA) })
			runAfter(7*time.Second, func() { w.do(func() { w.silent[outToA] = false }) })
		})},
		{name: "a sender that sends nothing after the fault", status: 4, new: onInject(func(w *world) { w.stopsSending(outToB) })},
		{name: "a sender that stops before the fault", status: 4, new: installing(func(w *world) { w.stopsSending(outToB) })},
		{name: "a sender that stops with the remedy", remedies: true, status: 4, old: applied(0, func(w *world) { w.stopsSending(outToA) })},
		{name: "a remedy that helps after ten seconds although it should not", remedies: true, status: 1, old: all(
			applied(0, func(w *world) { runAfter(10*time.Second, w.heals) }), func(_ *world, s *framework.Script) { s.Remedies = s.Remedies[:1] })},
		{name: "a lab that heals by itself just before the remedy", remedies: true, status: 4,
			old: func(w *world, s *framework.Script) {
				then(&s.Remedies[1].Undo, func() error { runAfter(450*time.Millisecond, w.heals); return nil })
			}},
		{name: "a remedy after which traffic is lost again", remedies: true, status: 1, old: applying(2, func(w *world) {
			w.heals()
			runAfter(4*time.Second, func() { w.loses(outToA) })
		})},
		{name: "a precursor that does not take hold", status: 4,
			old: precursor(untouched, func(p *framework.Precursor) { p.Fault.TookEffect = holdsNow(false) })},
		{name: "a precursor that costs packets two seconds later", status: 4,
			old: precursor(func(w *world) { runAfter(2*time.Second, func() { w.loses(outToB) }) }, func(*framework.Precursor) {})},
		{name: "an alarm before the first packet is lost", status: 0,
			old: onInject(func(w *world) { w.finds(theFinding); runAfter(time.Second, func() { w.loses(outToA) }) })},
		{name: "the fixed version refuses to start", status: 1, new: refuses("keys exclude each other")},
		{name: "it refuses to start, as it must", status: 0, refused: true, new: refuses("keys exclude each other")},
		{name: "it does not refuse to start, although it must", status: 1, refused: true, new: refuses("")},
		{name: "every part is switched off in turn", options: Options{Ablate: verdict.AblateAll}, remedies: true, status: 0},
		{name: "every part is switched off in turn, and the baseline is bad", remedies: true, status: 4,
			options: Options{Ablate: verdict.AblateAll, Variants: []string{"new"}}, new: installing(func(w *world) { w.loses(outToB) })},
		{name: "a precursor in which a source is not read", status: 4, new: func(w *world, s *framework.Script) {
			precursor(unread, func(p *framework.Precursor) { p.Fault.Undo = doing(func() { w.losesSources("") }) })(w, s)
		}},
		{name: "a source that stops answering at the end of a long observation", status: 4,
			new: observing(0, 20*time.Second, func(w *world) { runAfter(15*time.Second, func() { unread(w) }) })},
		{name: "a remedy that takes longer than its bound", remedies: true, status: 1, old: applying(2, func(w *world) {
			time.Sleep(30 * time.Second)
			w.heals()
			time.Sleep(5 * time.Second)
		})},
		{name: "a sender that sends nothing while the fault is injected", status: 4,
			new: func(w *world, s *framework.Script) {
				before(&s.Fault.Inject, func() { w.stopsSending(outToB); time.Sleep(2 * time.Minute); w.heals() })
			}},
		{name: "every part is switched off in turn, and the incident comes without the fault", remedies: true, status: 1,
			options: Options{Ablate: verdict.AblateAll}, old: func(w *world, s *framework.Script) {
				s.Fault.TookEffect = func(context.Context, *framework.Run) (bool, string, error) { w.loses(outToA); return true, "", nil }
			}},
		{name: "every part is switched off in turn, and the lab heals without a remedy", remedies: true, status: 1,
			options: Options{Ablate: verdict.AblateAll}, old: onInject(func(w *world) { w.breaks(outToA); runAfter(20*time.Second, w.heals) })},
		{name: "a race, and the fixed version survives as many rounds as the slowest affected one on record", status: 0,
			old: race(1, true), new: race(3, false)},
		{name: "a race, and the fixed version survives one round too few", status: 4, old: race(1, true), new: race(2, false)},
		{name: "a race, and an affected version that needed longer than all on record", status: 4, old: race(4, true), new: race(3, false)},
		{name: "three times, and once the fault does not take hold", status: 4, options: Options{Repeat: 3},
			old: func() change {
				runs := 0
				return func(w *world, s *framework.Script) {
					if runs++; runs == 3 { // the first is made when the scenario is checked
						s.Fault.TookEffect = holdsNow(false)
					}
				}
			}()},
		{name: "side by side, all as expected", beside: true, remedies: true, status: 0},
		{name: "side by side, and the affected version has a bad baseline", beside: true, status: 4,
			old: installing(func(w *world) { w.loses(outToB) })},
		{name: "side by side, and the installation of one breaks", beside: true, status: 4, new: uninstalled},
		{name: "side by side, and a step of one panics", beside: true, status: 4, new: onInject(func(*world) { panic("a bug") })},
		{name: "side by side, and putting back one panics", beside: true, status: 4, new: undoing(func() error { panic("a bug") })},
		{name: "side by side, and what one has for itself cannot be put back", beside: true, options: Options{Repeat: 2}, status: 4,
			old: undoing(broken)},
		{name: "side by side, and the fault does not take hold of one", beside: true, status: 4, new: ineffective},
		{name: "side by side, and the fixed version loses packets", beside: true, status: 1,
			new: onInject(func(w *world) { w.breaks(outToA) })},
		{name: "side by side, and the fixed version survives a race as long as the affected one", beside: true, status: 0,
			old: survives(3, 9*time.Second), new: survives(framework.MaxTrials+1, 10*time.Second)},
		{name: "side by side, and the affected version hangs sooner than on record", beside: true, status: 0,
			old: survives(1, 9*time.Second), new: survives(framework.MaxTrials+1, 10*time.Second)},
		{name: "side by side, three times", beside: true, options: Options{Repeat: 3}, status: 0},
		{name: "side by side, every part is switched off in turn", beside: true, options: Options{Ablate: verdict.AblateAll}, remedies: true, status: 0},
		{name: "side by side, one variant alone", beside: true, options: Options{Variants: []string{"old"}}, status: 0},
		{name: "no fault", options: Options{Ablate: verdict.AblateFault}, remedies: true, status: 4},
		{name: "no detector", options: Options{Ablate: verdict.AblateDetector}, remedies: true, status: 1},
		{name: "no remedy", options: Options{Ablate: verdict.AblateRemedy}, remedies: true, status: 1},
		{name: "one variant alone", options: Options{Variants: []string{"new"}}, status: 0},
		{name: "the symptom takes its time, and has it", status: 0, old: func(w *world, s *framework.Script) {
			s.SymptomWithin = 30 * time.Second
			onInject(func(w *world) { runAfter(20*time.Second, func() { w.breaks(outToA) }) })(w, s)
		}},
		{name: "the symptom takes its time, and does not have it", status: 1,
			old: onInject(func(w *world) { runAfter(20*time.Second, func() { w.breaks(outToA) }) })},
		// On a busy machine: late packets must not end the wait for the symptom.
		{name: "packets that are late, and later on the symptom", status: 0,
			old: onInject(func(w *world) { w.delays(outToA); runAfter(2*time.Second, func() { w.breaks(outToA) }) })},
		{name: "left alone for a minute", options: Options{Wait: time.Minute}, remedies: true, status: 0},
		{name: "left alone, and it heals by itself", options: Options{Wait: time.Minute}, remedies: true, status: 1,
			old: onInject(func(w *world) { w.breaks(outToA); runAfter(30*time.Second, w.heals) })},
		{name: "a lab that is kept", options: Options{Keep: true}, status: 0},
		{name: "three times", options: Options{Repeat: 3}, status: 0},
		{name: "an undoing that breaks", options: Options{Keep: true}, status: 4, old: undoing(broken)},
		{name: "an unexpected alarm comes and goes while a fact of a precursor is awaited", status: 1, old: func(w *world, s *framework.Script) {
			precursor(func(w *world) { w.finds(theFinding) }, func(p *framework.Precursor) {
				finding(p)
				p.Undone, p.Aftermath = true, []framework.Check{{Name: "time passes", Bound: 30 * time.Second, Holds: passing(5*time.Second, func() {
					runAfter(time.Second, func() { w.finds(theFinding, other) })
					runAfter(3*time.Second, func() { w.finds(theFinding) })
				})}}
			})(w, s)
		}},
		{name: "a fault whose effect cannot be read", status: 4,
			new: func(_ *world, s *framework.Script) {
				s.Fault.Inject, s.Fault.TookEffect = nothing, unseen(true, "the old pod runs")
			}},
		{name: "every part is switched off in turn, and traffic alone comes back without the remedy", remedies: true, status: 1,
			options: Options{Ablate: verdict.AblateAll, Variants: []string{"old"}}, old: func() change {
				injections := 0
				return func(w *world, s *framework.Script) {
					s.Remedies = s.Remedies[2:]
					before(&s.Fault.Inject, func() {
						if injections++; injections == 2 { // the run without the remedy
							runAfter(12*time.Second, func() { w.heals(); w.finds(theFinding) })
						}
					})
				}
			}()},
		{name: "a remedy after which every second packet is lost, which is no outage", remedies: true, status: 1,
			old: func(w *world, s *framework.Script) {
				s.MinOutage = 500 * time.Millisecond
				s.Remedies = s.Remedies[2:]
				s.Remedies[0].Bound = 10 * time.Second
				s.Remedies[0].Apply = doing(func() {
					w.heals()
					runAfter(1500*time.Millisecond, func() { w.alternates(outToA) })
				})
			}},
		{name: "an outage that lasts until the end, and counts", status: 4, new: cutOffAfter(5200 * time.Millisecond)},
		{name: "an outage that lasts until the end, and is short", status: 4, new: cutOffAfter(7 * time.Second)},
		{name: "a lab that is not isolated for a time", status: 4, old: onInject(func(w *world) {
			w.breaks(outToA)
			w.leaks("nftables table relapse-fake has 0 of 4 rules")
			runAfter(time.Second, func() { w.leaks("") })
		})},
		{name: "an undoing that panics", status: 4, old: undoing(func() error { panic("a bug") })},
		{name: "an undoing that breaks when all is judged", options: Options{Keep: true}, status: 4, new: undoing(broken)},
		{name: "side by side, twice, and an undoing panics", beside: true, options: Options{Repeat: 2}, status: 4, new: undoing(func() error { panic("a bug") })},
		{name: "images that do not build", labs: fakeLabs{prepare: errBroken}, status: 4},
		{name: "a lab that does not come up", labs: fakeLabs{up: errBroken}, status: 4},
		{name: "ends of which one has no agent", labs: fakeLabs{dial: errBroken}, status: 4},
		{name: "sources that cannot be opened", labs: fakeLabs{read: errBroken}, status: 4},
		{name: "a lab that does not go down", labs: fakeLabs{down: errBroken}, status: 4},
		{name: "a lab that another process holds", labs: fakeLabs{up: &kindlab.HeldError{}}, status: 3},
	}
}

func (c testCase) play(t *testing.T) played {
	w, s := fakeWorld()
	if c.beside {
		s, c.labs.beside = sideBySide()
	}
	s.Variants[1].Refused = c.refused
	for i, change := range []change{c.old, c.new} {
		w := w
		if c.beside {
			w = c.labs.beside[s.Variants[i].Nodes[0]]
		}
		script := s.Variants[i].Script
		s.Variants[i].Script = func() framework.Script {
			made := script()
			if !c.remedies {
				made.Remedies = nil
			}
			if change != nil {
				change(w, &made)
			}
			return made
		}
	}
	return play(t, w, s, &c.labs, c.options)
}

func TestCases(t *testing.T) {
	cases := testCases()
	texts, statuses := make([]string, len(cases)), slices.Repeat([]int{-1}, len(cases))
	t.Cleanup(func() { // when all cases have ended
		for _, status := range []int{0, 1, 3, 4} {
			must.Equal(t, fmt.Sprint("a case ends with status ", status), true, slices.Contains(statuses, status))
		}
		const golden = "testdata/cases.txt"
		text := strings.Join(texts, "")
		if *update {
			must.Write(t, golden, text)
		}
		must.Equal(t, golden, string(must.Read(t, golden)), text)
	})
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := c.play(t)
				said := describe(t, p)
				must.Equal(t, said, c.status, p.status())
				statuses[i] = p.status()
				must.Equal(t, "", 0, p.labs.open)
				if p.labs.made > 0 {
					must.Equal(t, "released to be kept", c.options.Keep && p.Broken() == nil, p.labs.released > 0)
					must.Equal(t, "released, or taken down", true, p.labs.released+p.labs.removed > 0)
				}
				texts[i] = fmt.Sprintf("== %s: exit status %d\n%s", c.name, p.status(), said)
			})
		})
	}
}

// clocks differ from run to run, because things that happen at the same moment come in any order.
var clocks = regexp.MustCompile(`; last seen: .*|\d+ of \d+ packets|of \d+ packets of \S+ that were due, .*|(since|from) \d\d:\d\d:[0-9.]+|waited \d+(\.\d+)?s`)

// describe is what a report says, without times.
func describe(t *testing.T, p played) string {
	var text strings.Builder
	line := func(format string, args ...any) {
		fmt.Fprintln(&text, clocks.ReplaceAllString(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "), "..."))
	}
	r, there := p.Report()
	if !there {
		line("no report: %v", p.Broken())
		return text.String()
	}
	stored := must.Get(report.Read(p.Dir() + "/report.json"))(t)
	must.Equal(t, "stored", [...]any{r.Verdict, len(r.Variants)}, [...]any{stored.Verdict, len(stored.Variants)})
	checkJUnit(t, p.Dir(), r)
	line("%s", r.Verdict)
	if r.Half != "" {
		line("half a pair: %s", r.Half)
	}
	if p.Broken() != nil {
		line("broken: %v", p.Broken())
	}
	if p.Left() != nil {
		line("left: %v", p.Left())
	}
	for _, v := range r.Variants {
		without := ""
		if v.Ablated != "" {
			without = " without " + v.Ablated
		}
		line("%s, %s%s: %s, expected %s; impacted: %v", v.Name, v.Role, without, v.Verdict, v.Expected, v.ProbesHurt)
		for _, p := range v.Probes {
			must.Equal(t, p, [...]any{p.Sent, true}, [...]any{p.Answered + p.Lost + p.NotJudged, p.Sent <= p.Due})
		}
		must.Equal(t, v, [...]any{0, len(v.ProbesHurt) > 0}, [...]any{v.Baseline.Lost, v.Onset != nil})
		for _, reason := range v.Reasons {
			line("  because: %s", reason)
		}
		if v.Race != nil {
			line("  race: %d rounds, took effect: %v", v.Race.Rounds, v.Race.Struck)
			if v.Race.Luck != nil {
				line("  luck: %d of %d", v.Race.Luck.Count, v.Race.Luck.Runs)
			}
		}
		for _, f := range v.Findings {
			when := "during " + f.During
			if f.TimeToDetectMS != nil {
				when += ", after the first lost packet"
			}
			line("  finding: %s %s %s, %s", f.State, f.Kind, f.Object, when)
		}
		for _, c := range v.Checks {
			line("  check: %s: %v %s", c.Name, c.Holds, c.Reason)
		}
		for _, remedy := range v.Remedies {
			if came := remedy.TimeToRecoverMS != nil; came && remedy.Verdict != verdict.Recovers || !came && remedy.Verdict == verdict.Recovers && remedy.Reason == "" {
				t.Errorf("%s: time to recover %v, verdict %s", remedy.Name, remedy.TimeToRecoverMS, remedy.Verdict)
			}
			line("  remedy: %s: %s, expected %s %s", remedy.Name, remedy.Verdict, remedy.Expected, remedy.Reason)
		}
		if v.Repeats != nil {
			line("  repeats: %d of %d, not judged: %v", v.Repeats.Expected.Count, v.Repeats.Expected.Runs, v.Repeats.NotJudged)
		}
	}
	return text.String()
}

// checkJUnit: a test without a verdict must neither pass nor fail in a CI.
func checkJUnit(t *testing.T, dir string, r report.Report) {
	t.Helper()
	var all reporters.JUnitTestSuites
	must.NoError(t, xml.Unmarshal(must.Read(t, junit.InFolder(dir)), &all))
	unjudged := 0
	for _, v := range r.Variants {
		if v.Repeats == nil && v.Verdict != v.Expected && (v.Verdict == "unknown" || v.Verdict == "vacuous") {
			unjudged++
		}
	}
	switch {
	case all.Disabled != len(r.NotRun), all.Errors < unjudged,
		r.Verdict == "pass" && all.Failures+all.Errors > 0,
		r.Verdict == "fail" && all.Failures == 0,
		r.Verdict == "inconclusive" && (all.Failures > 0 || all.Errors == 0):
		t.Errorf("JUnit has %d failures, %d errors, %d skipped; the run's verdict is %s, and %d variants could not be judged",
			all.Failures, all.Errors, all.Disabled, r.Verdict, unjudged)
	}
}

// slowLabs are labs whose Up goes on for a minute after its context has ended, and succeeds.
type slowLabs struct{ *fakeLabs }

func (l slowLabs) Up(ctx context.Context, s framework.Scenario, variants []framework.Variant, reuse bool) (Lab, error) {
	<-ctx.Done()
	time.Sleep(time.Minute) // on the bubble's clock
	return l.fakeLabs.Up(ctx, s, variants, reuse)
}

// The lab that an abandoned step still brings up must be removed after that, not before.
func TestFinishWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		labs := &fakeLabs{world: w}
		e := New(fakeScenario(w), slowLabs{labs}, Options{Output: t.TempDir()})
		ctx, interrupt := context.WithCancel(t.Context())
		must.NoError(t, e.steps[0].Run(ctx))                                         // images
		finishes(t, e, labs, func() error { return e.steps[1].Run(ctx) }, interrupt) // lab is up
	})
}

// finishes abandons a running step, and checks that the lab goes down after it.
func finishes(t *testing.T, e *Execution, labs *fakeLabs, step func() error, giveUp func()) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- step() }()
	synctest.Wait()
	giveUp()
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	e.Finish(short)
	_, over := e.Report()
	must.Equal(t, "while a step is at work", [...]any{false, true, 0}, [...]any{over, e.Left() != nil, labs.removed})
	e.Finish(t.Context())
	_, over = e.Report()
	must.Equal(t, e.Left(), [...]any{true, true, 1, 1}, [...]any{over, e.Left() == nil, labs.made, labs.removed})
	<-ended
}
