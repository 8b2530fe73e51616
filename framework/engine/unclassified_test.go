package engine

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/topology/must"
)

// Of an unclassified version every verdict is a valid answer, except those that say
// that the answer is unknown.
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
