package framework

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// onRecord are 46 loads: 43 struck in the first round, two in the second, and
// one was watched for two and not struck.
var onRecord = []Outcome{{1, true, 43}, {2, true, 2}, {2, false, 1}}

func TestStood(t *testing.T) {
	for rounds, want := range map[int][2]int{1: {3, 46}, 2: {1, 46}, 3: {0, 45}} {
		if stood, of := Survived(rounds, onRecord...); stood != want[0] || of != want[1] {
			t.Errorf("%d of %d stood %d rounds, want %d of %d", stood, of, rounds, want[0], want[1])
		}
	}
}

func TestRoundsToStand(t *testing.T) {
	for _, test := range []struct {
		outcomes []Outcome
		want     int
	}{
		{nil, 2},
		{[]Outcome{{1, true, 43}}, 2},
		{[]Outcome{{3, true, 1}, {1, true, 43}}, 3},
		{onRecord, 3}, // the one that stood two would have needed a third
		{[]Outcome{{9, true, 1}}, 4},
	} {
		if got := TrialsRequired(TrialsNeeded(test.outcomes...)); got != test.want {
			t.Errorf("%v: %d rounds, want %d", test.outcomes, got, test.want)
		}
	}
}

func TestRates(t *testing.T) {
	r, err := ParseRates([]byte(`{"tcg": [{"rounds": 1, "struck": true, "count": 43}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Add("tcg", 1, true)
	r.Add("tcg", 4, false)
	r.Add("kvm", 2, true)
	want := Rates{"tcg": {{1, true, 44}, {4, false, 1}}, "kvm": {{2, true, 1}}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for text, says := range map[string]string{
		`{"tcg": [{"rounds": 0, "struck": true, "count": 1}]}`: "rounds and count start at 1",
		`[`: "reading rates",
	} {
		if _, err := ParseRates([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

func TestToConvince(t *testing.T) {
	for _, test := range []struct {
		outcomes []Outcome
		want     int
	}{
		{nil, 7}, // a coin
		{onRecord, 2},
		{[]Outcome{{1, true, 18}, {2, true, 2}}, 3},
		{[]Outcome{{9, false, 10}}, 422}, // hardly any is struck
	} {
		got := TrialsToConvince(test.outcomes...)
		if luck := Luck(test.outcomes...); got != test.want || math.Pow(luck, float64(got)) >= MaxErrorRate || math.Pow(luck, float64(got-1)) < MaxErrorRate {
			t.Errorf("%v: %d rounds at a luck of %.3f, want %d", test.outcomes, got, luck, test.want)
		}
	}
}
