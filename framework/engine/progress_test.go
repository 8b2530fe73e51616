package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/must"
)

type listener struct {
	mu    sync.Mutex
	plan  []string
	over  []string
	waits map[string]int // unfinished waits, by scope
	saw   []string       // scope, what was waited for, and what was seen
	news  []string       // findings and losses
}

func (l *listener) Scenario(string) Progress { return l }

func (l *listener) Plan(steps []Step) {
	for _, s := range steps {
		l.plan = append(l.plan, s.Scope+": "+s.Name)
	}
}

func (l *listener) Step(string, string) func(error) { return func(error) {} }
func (l *listener) Note(string, string)             {}

func (l *listener) Over(scope, name string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var skipped *Skipped
	if errors.As(err, &skipped) {
		name += " (skipped)"
	} else if err != nil {
		name += " (failed)"
	}
	l.over = append(l.over, scope+": "+name)
}

func (l *listener) Waits(scope string, s await.Sight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprint(scope, s.What, s.Began)
	if s.Over {
		delete(l.waits, key)
	} else {
		l.waits[key]++
	}
	l.saw = append(l.saw, scope+": "+s.What+": "+s.Saw)
}

func (l *listener) Found(scope string, findings []detect.Finding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range findings {
		l.news = append(l.news, fmt.Sprintf("%s: %s %s", scope, f.State, f.Object))
	}
}

func (l *listener) Loses(scope string, probes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news = append(l.news, scope+": loses "+strings.Join(probes, ", "))
}

func listenTo(t *testing.T, up error) *listener {
	w, l := newWorld(), &listener{waits: map[string]int{}}
	New(fakeScenario(w), &fakeLabs{world: w, up: up}, Options{Output: t.TempDir(), Progress: l}).Run(t.Context(), UndoWithin)
	return l
}

// Progress gets all steps before the first step begins, then their results and waits, findings and losses.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listenTo(t, nil)
		must.Equal(t, "steps", l.plan, l.over)
		must.Equal(t, "waits that are not over", 0, len(l.waits))
		for _, want := range []string{"old: 3 probes: 5s without loss: out->a: ", "old: the outcome of the last packets: "} {
			if !slices.ContainsFunc(l.saw, func(s string) bool { return strings.HasPrefix(s, want) && s != want }) {
				t.Errorf("no report of what %q has seen; reported were\n%s", want, strings.Join(l.saw, "\n"))
			}
		}
		// Two remedies: after each the symptom is gone, and comes back with its undo.
		news := strings.Join(l.news, "\n") + "\n"
		must.Contain(t, news, "old: active a\n", "old: loses out->a\n", "old: loses \n")
		must.Equal(t, "the same finding was reported", 1, strings.Count(news, "old: active a"))
		must.Equal(t, "of the fixed variant", 0, strings.Count(news, "new:"))
	})
}

// If no lab comes up, every step ends all the same.
func TestProgressWithoutALab(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := listenTo(t, errors.New("no lab"))
		must.Equal(t, l.plan, len(l.plan), len(l.over))
		must.Equal(t, "over", []string{"lab: lab is up (failed)", "old: components are installed (skipped)"}, l.over[1:3])
	})
}
