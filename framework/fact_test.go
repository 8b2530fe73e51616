package framework

import (
	"strings"
	"testing"
)

func TestFacts(t *testing.T) {
	for _, test := range []struct {
		name string
		fact Fact
		says string // empty: nothing is wrong
	}{
		{"asserted", Fact{Says: "a is not reached", By: By("old", StepSymptom, "remedy: route")}, ""},
		{"asserted by what must not come", Fact{Says: "a is reached", By: By("new", StepUnhurt)}, ""},
		{"not asserted, and why", Fact{Says: "it rained", Not: "the weather is not read"}, ""},
		{"not asserted", Fact{Says: "it rained"}, `fact "it rained": no step asserts it, and nothing says why`},
		{"no sentence", Fact{Says: "It rained.", Not: "so it did"}, "without a full stop"},
		{"a variant that is not there", Fact{Says: "it works", By: By("newest", StepUnhurt)}, `there is no variant "newest"`},
		{"a step that is not there", Fact{Says: "it helps", By: By("old", "remedy: rout")}, `old has no step "remedy: rout"; nearest is "remedy: route"`},
		{"a remedy that helps for one that does not", Fact{Says: "it does not help", By: By("old", "no remedy: route")}, `old has no step "no remedy: route"`},
		{"a symptom of the fixed version", Fact{Says: "a is not reached", By: By("new", StepSymptom)}, `new has no step "symptom"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := pair(func(*Script) {})
			s.Incident.Facts = []Fact{test.fact}
			err := s.Validate()
			if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("%v\nwant %q in it", err, test.says)
			}
		})
	}
}

func TestFactString(t *testing.T) {
	for want, f := range map[string]Fact{
		"+ a is gone\n    old, symptom":                                      {Says: "a is gone", By: By("old", StepSymptom)},
		"- it rained\n    not asserted: nobody looks":                        {Says: "it rained", Not: "nobody looks"},
		"+ a is gone\n    old, symptom\n    only in part: for b nobody asks": {Says: "a is gone", By: By("old", StepSymptom), Not: "for b nobody asks"},
	} {
		if got := f.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
