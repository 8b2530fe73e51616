package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/framework/verdict"
	"github.com/relapse-dev/relapse/topology/must"
)

// A panic of an undo ends the run as its error does, also on a kept lab without an expectation, as in bisect.
func TestRestorePanicsUnclassified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := fakeWorld()
		s.Variants = s.Variants[:1]
		s.Variants[0].Role = framework.Unclassified
		s = scripted(s, func(s *framework.Script) { undoing(func() error { panic("a bug") })(w, s) })
		p := play(t, w, s, &fakeLabs{}, Options{Keep: true})
		r, _ := p.Report()
		must.Fail(t, p.Broken(), "a bug")
		must.Equal(t, p, false, r.Verdict == "pass")
	})
}

// The stored half of a killed run is inconclusive.
func TestJudgeOfKilledRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := fakeWorld()
		p := play(t, w, s, &fakeLabs{}, Options{})
		r := must.Get(report.Read(filepath.Join(p.Dir(), "report.json")))(t)
		// As publish leaves it: the second variant has not begun.
		r.Variants, r.Verdict = r.Variants[:1], "inconclusive"
		r.Unfinished = &report.Unfinished{At: time.Now(), Steps: []string{"old: lab is restored"}}
		must.NoError(t, r.Write(p.Dir()))
		must.NoError(t, os.RemoveAll(filepath.Join(p.Dir(), "evidence", "new")))
		again := must.Get(judgeAgain(p.Dir(), s))(t)
		must.Equal(t, again.NotOnRecord, false, again.Report.Verdict == "pass")
	})
}

// Two images of a component, and the digests that they were built with.
const (
	agent1, built1 = "quay.io/vendor/agent:v1", "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	agent2, built2 = "quay.io/vendor/agent:v2", "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

func podOf(image, id string) snapshot.List[snapshot.PodImages] {
	return snapshot.List[snapshot.PodImages]{Read: true, Items: []snapshot.PodImages{{Name: "agent", Containers: []snapshot.RunningContainer{
		{Container: snapshot.Container{Image: image}, ImageID: id},
	}}}}
}

func labsRunning(running snapshot.List[snapshot.PodImages]) *fakeLabs {
	return &fakeLabs{digests: map[string]string{agent1: built1, agent2: built2}, running: running}
}

// A variant is unknown if its pods run an image other than the built image, or none of its images.
func TestImagesThatRan(t *testing.T) {
	const repository = "quay.io/vendor/agent@"
	for name, test := range map[string]struct {
		fixed   string // the image of the fixed variant
		running snapshot.List[snapshot.PodImages]
		status  int
		reason  string
	}{
		"the one that was built": {agent1, podOf(agent1, repository+built1), 0, ""},
		"not created":            {agent1, podOf(agent1, ""), 0, ""},
		"another tag's, which was built for another variant": {agent1, podOf(agent2, repository+built2), 0, ""},
		"a tag that was moved to it":                         {agent1, podOf("quay.io/vendor/agent", repository+built2), 0, ""},
		"another one":                                        {agent1, podOf(agent1, repository+built2), 4, agent1 + " has the digest " + built2},
		"a digest of its content":                            {agent1, podOf(agent1, built2), 4, "a node does not report the digest"},
		"not read":                                           {agent1, snapshot.List[snapshot.PodImages]{Error: "no answer"}, 4, "no answer"},
		"none":                                               {agent2, snapshot.List[snapshot.PodImages]{Read: true}, 4, ""},
		"the affected version's alone":                       {agent2, podOf(agent1, repository+built1), 4, ""},
	} {
		inBubble(t, name, func(t *testing.T) {
			w, s := fakeWorld()
			s = scripted(s, func(made *framework.Script) { made.Remedies = nil })
			s.Variants[0].Images, s.Variants[1].Images = []string{agent1}, []string{test.fixed}
			if test.fixed == agent2 {
				s.Variants[1].Components = map[string]string{"agent": "2"}
			}
			p := play(t, w, s, labsRunning(test.running), Options{})
			r, _ := p.Report()
			must.Equal(t, p, test.status, p.status())
			must.Contain(t, strings.Join(r.Variants[0].Reasons, "; "), test.reason)
		})
	}
}

// In an incident that costs a share of the packets, a remedy that does not help must leave losses to the end. Traffic
// decides that: in the cases without heals the detectors go on reporting.
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
		{name: "it helps after a second", partial: true, shares: true, apply: func(w *world) { runAfter(time.Second, w.heals) }, want: verdict.Recovers},
		{name: "it helps, and a stray packet is lost", partial: true, apply: func(w *world) {
			arrive(w)
			runAfter(3*time.Second, func() { w.do(func() { w.lost[outToA] = true }) })
			runAfter(3*time.Second+sendsEvery, func() { arrive(w) })
		}, want: verdict.Recovers},
		{name: "it helps, and the sender is silent then", partial: true, apply: func(w *world) {
			arrive(w)
			runAfter(1800*time.Millisecond, func() { w.stopsSending(outToA) })
		}, want: verdict.Unjudged},
		{name: "in an incident that costs all of them", shares: true, apply: func(*world) {}, want: verdict.Recovers},
	} {
		inBubble(t, tt.name, func(t *testing.T) {
			p := testCase{old: func(w *world, s *framework.Script) {
				s.Partial = tt.partial
				s.Remedies = []framework.Remedy{{ID: "useless", Name: "useless", Watch: 4 * time.Second, Apply: doing(func() {
					tt.apply(w)
					for i := range 200 {
						runAfter(time.Duration(i)*sendsEvery, func() {
							w.do(func() {
								if tt.shares && len(w.found) > 0 {
									w.lost[outToA] = i%2 == 0
								}
							})
						})
					}
				})}}
			}}.play(t)
			r, _ := p.Report()
			must.Equal(t, p, tt.want, r.Variants[0].Remedies[0].Verdict)
			must.Equal(t, p, tt.want == verdict.DoesNotHelp, p.status() == 0)
		})
	}
}

// An incident that costs packets in bursts has not ended in the time between two of them.
func TestRemedyBetweenBursts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		lull   time.Duration
		ablate verdict.Part
		want   string
		status int
	}{
		{"switched off, and no lull is known", 0, verdict.AblateRemedy, verdict.Recovers, 1},
		{"switched off", 4 * time.Second, verdict.AblateRemedy, verdict.DoesNotHelp, 1},
		{"it helps", 4 * time.Second, "", verdict.Recovers, 0},
	} {
		inBubble(t, tt.name, func(t *testing.T) {
			p := testCase{remedies: true, options: Options{Ablate: tt.ablate}, old: func(w *world, s *framework.Script) {
				s.Partial, s.Lull, s.Remedies = true, tt.lull, s.Remedies[1:2]
				onInject(func(w *world) {
					w.breaks(outToA)
					for i := range 2000 { // 300 ms of loss every 3 s
						runAfter(time.Duration(i)*sendsEvery, func() { w.do(func() { w.lost[outToA] = i%60 < 6 && (i < 6 || len(w.found) > 0) }) })
					}
				})(w, s)
			}}.play(t)
			r, _ := p.Report()
			must.Equal(t, p, [...]any{tt.want, tt.status}, [...]any{r.Variants[0].Remedies[0].Verdict, p.status()})
		})
	}
}

func TestRefusedByAnotherImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := fakeWorld()
		s = scripted(s, func(s *framework.Script) { all(uninstalled, refuses("no such option"))(nil, s) })
		s.Variants = s.Variants[:1]
		s.Variants[0].Role, s.Variants[0].Images = framework.Unclassified, []string{agent1}
		p := play(t, w, s, labsRunning(podOf(agent1, "quay.io/vendor/agent@"+built2)), Options{})
		r, _ := p.Report()
		must.Equal(t, "refused, and so not affected", false, r.Variants[0].Verdict == "refused")
	})
}

// Every verdict is a valid answer, except the verdicts that say that the answer is unknown.
func TestUnclassified(t *testing.T) {
	latent := theFinding
	latent.State = detect.Latent
	harmless := onInject(untouched)
	unsure := func(_ *world, s *framework.Script) {
		s.Refuses = func(context.Context, *framework.Run) (string, error) { return "", errors.New("the slice ended") }
	}
	for _, test := range []struct {
		name    string
		script  func(*world, *framework.Script)
		verdict framework.Verdict
		status  int
		because string
	}{
		{"it strikes, and is named", all(), framework.Reproduced, 0, "out->a lost packets, and detectors reported why"},
		{"it does not occur", harmless, framework.Prevented, 0, "no probe lost packets"},
		{"it occurs, and no detector says why", onInject(func(w *world) { w.loses(outToA) }), framework.Missed, 0, "no detector reported why"},
		{"it refuses after the fault", all(harmless, refuses("no such option")), framework.Refused, 0, "no such option"},
		{"it refuses to be installed", all(uninstalled, refuses("no such option")), framework.Refused, 0, "no such option"},
		{"it does not start, and does not say why", all(uninstalled, refuses("")), framework.Unknown, 4, "it is broken"},
		{"it is not known whether it refuses to be installed", all(uninstalled, unsure), framework.Unknown, 4, "it is broken"},
		{"it is not known whether it refuses after the fault", all(harmless, unsure), framework.Unknown, 4, "the slice ended"},
		{"the fault does not take hold", ineffective, framework.Vacuous, 4, "the fault did not take effect"},
		{"the baseline is bad", func(w *world, s *framework.Script) {
			s.Baseline = []framework.Check{{Name: "fact", Holds: says(false, "they agree")}}
		}, framework.Vacuous, 4, "fact: not as expected: they agree"},
		{"others lose packets", onInject(func(w *world) { w.breaks(outToA, aToB) }), framework.Unknown, 4, "a->b"},
		{"an alarm without loss", onInject(func(w *world) { w.finds(theFinding) }), framework.Unknown, 4, "no probe lost packets"},
		{"too few rounds of a race", func(w *world, s *framework.Script) {
			harmless(w, s)
			s.Trials = &framework.Trials{Unit: "tick", Result: func() (int, bool) { return 1, false }}
		}, framework.Unknown, 4, "it has to survive 4 trials (tick), and survived 1"},
		{"what is only expected of an affected one", func(w *world, s *framework.Script) {
			s.Latent = []framework.Finding{framework.As(latent)}
			s.Aftermath = []framework.Check{{Name: "fact", Holds: says(false, "not there")}}
			s.Precursors = []framework.Precursor{{Name: "form", Fault: framework.Fault{Name: "never", Inject: breaking}}}
			s.Remedies = []framework.Remedy{{Name: "never", Apply: breaking}}
		}, framework.Reproduced, 0, "out->a lost packets"},
		{"a latent finding before the fault", all(harmless, installing(func(w *world) { w.finds(latent) })),
			framework.Prevented, 0, "no probe lost packets"},
	} {
		inBubble(t, test.name, func(t *testing.T) {
			w, s := fakeWorld()
			s.Tested = []framework.Tested{{Name: "fake", Default: "1.0.0", Varied: true}}
			s.At = func(versions map[string]string) framework.Variant {
				return framework.Variant{
					Name: "fake-" + versions["fake"], Components: versions, Form: framework.Whole,
					Script: func() framework.Script {
						script := w.affected()
						test.script(w, &script)
						return script
					},
				}
			}
			s = must.Get(s.Unclassified(map[string]string{"fake": "1.2.3"}))(t)
			p := play(t, w, s, &fakeLabs{}, Options{})
			r, _ := p.Report()
			v := r.Variants[0]
			must.Equal(t, p, [...]any{string(test.verdict), test.status}, [...]any{v.Verdict, p.status()})
			must.Equal(t, "name, expected, half", [...]string{"fake-1.2.3", "", ""}, [...]string{v.Name, v.Expected, r.Half})
			if test.status == 0 {
				for expected, want := range map[framework.Verdict]framework.RunVerdict{
					"": framework.Observed, test.verdict: framework.Pass, framework.Unknown: framework.Fail,
				} {
					s.Variants[0].Expect = expected
					must.Equal(t, expected, string(want), must.Get(judgeAgain(p.Dir(), s))(t).Report.Verdict)
				}
			}
			must.Contain(t, strings.Join(v.Reasons, "; "), test.because)
			must.Equal(t, v.Checks, [...]any{0, true}, [...]any{len(v.Remedies), len(v.Checks) <= 1}) // none was requested
		})
	}
}
