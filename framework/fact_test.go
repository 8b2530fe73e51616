package framework

import (
	"context"
	"strings"
	"testing"
)

var up = Check{ID: "up", Name: "all links are up", Holds: func(context.Context, *Run) (bool, string, error) { return true, "", nil }}

func TestFacts(t *testing.T) {
	for _, test := range []struct {
		name string
		fact Fact
		says string // empty: nothing is wrong
	}{
		{"asserted", Fact{Says: "a is not reached", By: By("old", StepSymptom, StepRemedy("route"))}, ""},
		{"asserted by what must not come", Fact{Says: "a is reached", By: By("new", StepObserve)}, ""},
		{"not asserted, and why", Fact{Says: "it rained", Not: "the weather is not read"}, ""},
		{"not asserted", Fact{Says: "it rained"}, `fact "it rained": no step asserts it, and nothing says why`},
		{"no sentence", Fact{Says: "It rained.", Not: "so it did"}, "without a full stop"},
		{"a variant that is not there", Fact{Says: "it works", By: By("newest", StepObserve)}, `there is no variant "newest"`},
		{"a step that is not there", Fact{Says: "it helps", By: By("old", StepRemedy("rout"))}, `old has no step "remedy/rout"; nearest is "remedy/route"`},
		{"a check after for one before", Fact{Says: "it is up", By: By("old", StepAfter("up"))}, `old has no step "after/up"; there are`},
		{"a verdict of one that does not refuse", Fact{Says: "it refuses", By: By("new", StepVerdict)}, `new has no step "verdict"`},
		{"a symptom of the fixed version", Fact{Says: "a is not reached", By: By("new", StepSymptom)}, `new has no step "symptom"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := pair(func(s *Script) { s.Baseline = []Check{up} })
			s.Incident.Facts = []Fact{test.fact}
			err := s.Validate()
			if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("%v\nwant %q in it", err, test.says)
			}
		})
	}
}
