package framework

import (
	"math"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// occurred is the outcome of count affected components: the incident occurred in this trial.
func occurred(round, count int) Outcome { return Outcome{Trials: round, Occurred: true, Count: count} }

// Rates of another load or another accelerator say nothing.
func TestRatesOnRecord(t *testing.T) {
	trials := &Trials{Load: "heavy", Rates: Rates{
		"tcg": {{Load: "light", Trials: 3, Occurred: true, Count: 9}, {Trials: 2, Occurred: true, Count: 9}, {Load: "heavy", Trials: 1, Occurred: true, Count: 2}},
		"uml": {{Load: "heavy", Trials: 4, Occurred: true, Count: 1}},
	}}
	must.Equal(t, "", []Outcome{{Load: "heavy", Trials: 1, Occurred: true, Count: 2}}, trials.On("tcg"))
	if got := trials.On("kvm"); len(got) != 0 {
		t.Errorf("%v, want none", got)
	}
}

// onRecord are 46 loads: 43 hung in the first round, two in the second, and
// one was watched for two and did not hang.
var onRecord = []Outcome{occurred(1, 43), occurred(2, 2), {Trials: 2, Count: 1}}

func TestSurvived(t *testing.T) {
	for rounds, want := range map[int][2]int{1: {3, 46}, 2: {1, 46}, 3: {0, 45}} {
		if stood, total := Survived(rounds, onRecord...); stood != want[0] || total != want[1] {
			t.Errorf("%d of %d stood %d rounds, want %d of %d", stood, total, rounds, want[0], want[1])
		}
	}
}

func TestRoundsToStand(t *testing.T) {
	for _, test := range []struct {
		outcomes []Outcome
		want     int
	}{
		{nil, 2},
		{[]Outcome{occurred(1, 43)}, 2},
		{[]Outcome{occurred(3, 1), occurred(1, 43)}, 3},
		{onRecord, 3}, // the one that stood two would have needed a third
		{[]Outcome{occurred(9, 1)}, 4},
	} {
		must.Equal(t, test.outcomes, test.want, TrialsRequired(TrialsNeeded(test.outcomes...)))
	}
}

func TestRates(t *testing.T) {
	for text, says := range map[string]string{
		`{"tcg": [{"rounds": 0, "struck": true, "count": 1}]}`: "rounds and count start at 1",
		`[`: "reading rates",
	} {
		must.Fail(t, must.Err(ParseRates([]byte(text))), says)
	}
}

func TestToConvince(t *testing.T) {
	for _, test := range []struct {
		outcomes []Outcome
		want     int
	}{
		{nil, 7}, // a coin
		{onRecord, 3},
		{[]Outcome{occurred(1, 1)}, 20}, // one is no proof that each hangs
		{[]Outcome{occurred(1, 20)}, 3}, // nor are twenty
		{[]Outcome{occurred(1, 18), occurred(2, 2)}, 4},
		{[]Outcome{{Trials: 9, Count: 10}}, math.MaxInt32}, // none hung
	} {
		got := TrialsToConvince(test.outcomes...)
		if luck := Luck(test.outcomes...); got != test.want || luck < 1 && math.Pow(luck, float64(got)) >= MaxErrorRate || luck < 1 && math.Pow(luck, float64(got-1)) < MaxErrorRate {
			t.Errorf("%v: %d rounds at a luck of %.3f, want %d", test.outcomes, got, luck, test.want)
		}
	}
}

func TestTrialsConvincing(t *testing.T) {
	few := Rates{"uml": {{Trials: 1, Occurred: true, Count: 20}}}
	for _, test := range []struct {
		name   string
		trials Trials
		want   int
	}{
		{"without rates", Trials{}, MaxTrials},
		{"without rates, and there may be more", Trials{Most: 7}, 7},
		{"too few may be more", Trials{Most: 6}, 6},
		{"rates that convince sooner", Trials{Most: 7, Rates: few}, 3},
		{"rates of another accelerator", Trials{Most: 7, Rates: Rates{"kvm": few["uml"]}}, 7},
	} {
		must.Equal(t, test.name, test.want, test.trials.Convincing("uml"))
	}
	must.Equal(t, "without rates", 7, TrialsToConvince())
}
