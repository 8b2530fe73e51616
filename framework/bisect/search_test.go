package bisect

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/topology/must"
)

// play searches to the end, and returns which versions were asked for. Versions that truth does not have are skipped.
func play(t *testing.T, s *Search, truth map[string]Outcome) []string {
	t.Helper()
	var asked []string
	for {
		left := s.Left()
		v, more := s.Next()
		if (left == 0) == more {
			t.Fatalf("after %v: next is %q, and %d are left", asked, v, left)
		}
		if !more {
			return asked
		}
		if slices.Contains(asked, v) {
			t.Fatalf("%s is asked for again, after %v", v, asked)
		}
		asked = append(asked, v)
		o, found := truth[v]
		if !found {
			o = Skipped
		}
		s.Tell(v, o)
		if now := s.Left(); o != Skipped && now >= left {
			t.Fatalf("after %v: %d left, and %d before", asked, now, left)
		}
	}
}

func TestSearch(t *testing.T) {
	for _, test := range []struct {
		name                 string
		affected, unaffected string
		skipped              string
		asked                string
		want                 Result
		exact                bool
	}{
		{"fixed within a branch", "1.0.0 1.0.1 1.0.2 1.0.3", "1.0.4 1.0.5", "", "1.0.0 1.0.5 1.0.3 1.0.4",
			Result{Changes: []Change{{Last: "1.0.3", First: "1.0.4", Outcome: Unaffected, Between: []string{}}}}, true},
		{"broken within a branch", "1.0.2 1.0.10", "1.0.0 1.0.1", "", "1.0.0 1.0.10 1.0.2 1.0.1",
			Result{Changes: []Change{{Last: "1.0.1", First: "1.0.2", Outcome: Affected, Between: []string{}}}}, true},
		{"fixed in the next branch, and not ported back", "1.11.6 1.11.7", "1.12.0-rc0 1.12.0-rc1 1.12.0", "",
			"1.11.6 1.12.0 1.11.7 1.12.0-rc0",
			Result{Changes: []Change{{Last: "1.11.7", First: "1.12.0-rc0", Outcome: Unaffected, Between: []string{}}}}, true},
		{"ported back", "1.11.6 1.11.7", "1.11.8 1.12.0 1.12.1", "", "1.11.6 1.12.1 1.11.8 1.12.0 1.11.7",
			Result{Changes: []Change{
				{Last: "1.11.7", First: "1.11.8", Outcome: Unaffected, Between: []string{}},
				{Last: "1.11.7", First: "1.12.0", Outcome: Unaffected, Between: []string{}},
			}}, true},
		{"the end of a branch is not available", "1.11.6", "1.12.0-rc0 1.12.0", "1.11.7 1.11.8", "1.11.6 1.12.0 1.11.8 1.11.7 1.12.0-rc0",
			Result{Changes: []Change{{Last: "1.11.6", First: "1.12.0-rc0", Outcome: Unaffected, Between: []string{}}}}, true},
		{"the first of a branch is not available", "1.11.6", "1.12.0-rc1 1.12.0", "1.12.0-rc0", "1.11.6 1.12.0 1.12.0-rc0 1.12.0-rc1",
			Result{Changes: []Change{{Last: "1.11.6", First: "1.12.0-rc1", Outcome: Unaffected, Between: []string{"1.12.0-rc0"}}}}, false},
		{"a whole branch is not available", "2.1.0", "1.5.1", "1.5.2 1.6.0 2.1.1", "1.5.1 2.1.1 2.1.0 1.5.2 1.6.0",
			Result{Changes: []Change{{Last: "1.5.1", First: "2.1.0", Outcome: Affected, Between: []string{"1.6.0"}}}}, false},
		{"what lies between cannot be judged", "1.0.0", "1.0.3", "1.0.1 1.0.2", "1.0.0 1.0.3 1.0.2 1.0.1",
			Result{Changes: []Change{{Last: "1.0.0", First: "1.0.3", Outcome: Unaffected, Between: []string{"1.0.1", "1.0.2"}}}}, false},
		{"the first of the older branch is not available", "1.12.0-rc0 1.12.0", "1.11.2 1.11.3", "1.11.0-rc0 1.11.1",
			"1.11.0-rc0 1.11.1 1.11.2 1.12.0 1.11.3 1.12.0-rc0",
			Result{Changes: []Change{{Last: "1.11.3", First: "1.12.0-rc0", Outcome: Affected, Between: []string{"1.11.1"}}}}, false},
		{"both ends alike", "1.0.0 1.0.1 1.0.2", "", "", "1.0.0 1.0.2", Result{Alike: Affected}, false},
		{"it came and went between the ends", "1.1.0 1.1.1 1.2.0", "1.0.0 1.0.1 1.2.1 1.2.2 1.3.0", "", "1.0.0 1.3.0 1.0.1 1.1.0 1.1.1 1.2.0 1.2.2 1.2.1",
			Result{Changes: []Change{
				{Last: "1.0.1", First: "1.1.0", Outcome: Affected, Between: []string{}},
				{Last: "1.2.0", First: "1.2.1", Outcome: Unaffected, Between: []string{}},
				{Last: "1.2.0", First: "1.3.0", Outcome: Unaffected, Between: []string{}},
			}}, true},
		{"the ends of all minors alike", "", "1.0.0 1.0.1 1.0.2 1.1.0 1.2.0", "", "1.0.0 1.2.0 1.0.2 1.1.0", Result{Alike: Unaffected}, false},
		{"a minor between ends that are alike is not available", "", "1.0.0 1.2.0", "1.1.0 1.1.1", "1.0.0 1.2.0 1.1.0 1.1.1", Result{Alike: Unaffected, Unjudged: []string{"1.1.0", "1.1.1"}}, false},
		{"an end is not available", "1.0.1", "1.0.2", "1.0.0 1.0.3", "1.0.0 1.0.1 1.0.3 1.0.2",
			Result{Changes: []Change{{Last: "1.0.1", First: "1.0.2", Outcome: Unaffected, Between: []string{}}}}, true},
		// Versions of the older branch below the range may have brought the change as well.
		{"versions below the range, which are affected as well", "1.13.0 1.13.1", "1.12.5 1.12.10", "", "1.12.5 1.13.1 1.12.10 1.13.0",
			Result{Changes: []Change{{Last: "1.12.10", First: "1.13.0", Outcome: Affected, Between: []string{"1.12.0", "1.12.4"}}}}, false},
		{"nothing is available", "", "", "1.0.0 1.0.1", "1.0.0 1.0.1", Result{}, false},
		{"one is available", "1.0.1", "", "1.0.0", "1.0.0 1.0.1", Result{Alike: Affected}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			truth := map[string]Outcome{}
			for _, v := range strings.Fields(test.affected) {
				truth[v] = Affected
			}
			for _, v := range strings.Fields(test.unaffected) {
				truth[v] = Unaffected
			}
			versions := strings.Fields(test.skipped + " " + test.unaffected + " " + test.affected)
			var earlier []string
			if strings.HasPrefix(test.name, "versions below the range") {
				earlier = []string{"1.12.0", "1.12.4"}
			}
			s := must.Get(New(versions, earlier...))(t)
			must.Equal(t, "asked for", test.asked, strings.Join(play(t, s, truth), " "))
			must.Equal(t, "result", test.want, s.Result())
			must.Equal(t, "exact", test.exact, s.Result().Exact())
		})
	}
}

// Every change that is found is real, and no version in between could have been judged.
func TestAnyHistory(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 14))
		truth := map[string]Outcome{}
		var versions []string
		outcomes := []Outcome{Affected, Unaffected}
		begins := outcomes[r.IntN(2)]
		var log2 int
		for minor := range 1 + r.IntN(4) {
			if minor > 0 && r.IntN(3) == 0 {
				begins = outcomes[r.IntN(2)]
			}
			n := 2 + r.IntN(20)
			turns := r.IntN(2 * n) // and often never
			for log := 1; log < n; log *= 2 {
				log2++
			}
			for patch := range n {
				v := fmt.Sprintf("1.%d.%d", minor, patch)
				versions = append(versions, v)
				if r.IntN(5) == 0 {
					continue // it is not available
				}
				truth[v] = begins
				if patch >= turns {
					truth[v] = outcomes[1-slices.Index(outcomes, begins)]
				}
			}
		}
		s := must.Get(New(versions))(t)
		asked := play(t, s, truth)
		judged := slices.DeleteFunc(slices.Clone(asked), func(v string) bool { return truth[v] == "" })
		if most := log2 + 2*len(s.branches); len(judged) > most {
			t.Errorf("seed %d: %d versions were judged, want %d at most", seed, len(judged), most)
		}
		for _, c := range s.Result().Changes {
			if truth[c.First] != c.Outcome || truth[c.Last] == c.Outcome || Compare(c.Last, c.First) >= 0 {
				t.Errorf("seed %d: %+v: they are %s and %s", seed, c, truth[c.Last], truth[c.First])
			}
			for _, v := range c.Between {
				if truth[v] != "" {
					t.Errorf("seed %d: %+v: %s could be judged", seed, c, v)
				}
			}
			if i := slices.Index(versions, c.First); len(c.Between) == 0 && i > 0 && versions[i-1] != c.Last && Minor(versions[i-1]) == Minor(c.First) {
				t.Errorf("seed %d: %+v: %s comes before it", seed, c, versions[i-1])
			}
		}
	}
}

func TestNoSearch(t *testing.T) {
	for versions, want := range map[string]string{
		"":            `a bisection needs at least two versions: there are []`,
		"1.0.0 1.0.0": `a bisection needs at least two versions: there are ["1.0.0"]`,
		"1.0.0 1.1":   `"1.1" is not a version: expected one such as 1.11.0`,
	} {
		must.Equal(t, "", want, fmt.Sprint(must.Err(New(strings.Fields(versions)))))
	}
}
