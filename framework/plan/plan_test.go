package plan

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/topology/must"
)

const minute = time.Minute

func TestShards(t *testing.T) {
	five := []Item{{"a", 3 * minute}, {"b", 5 * minute}, {"c", 3 * minute}, {"d", 6 * minute}, {"e", 5 * minute}}
	for _, test := range []struct {
		name  string
		items []Item
		n     int
		want  []string
	}{
		{"one machine", five, 1, []string{"d b e a c 22m0s"}},
		{"two machines", five, 2, []string{"d a c 12m0s", "b e 10m0s"}},
		{"more machines than scenarios", five[:2], 9, []string{"b 5m0s", "a 3m0s"}},
		{"one that was not measured", append(slices.Clone(five), Item{"new", 0}), 3, []string{"d a 9m0s", "new c 3m0s", "b e 10m0s"}},
		{"none was measured", []Item{{"a", 0}, {"b", 0}, {"c", 0}}, 2, []string{"a c 0s", "b 0s"}},
		{"nothing", nil, 2, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for i, s := range Shards(test.items, test.n) {
				must.Equal(t, "", i+1, s.Number)
				got = append(got, strings.Join(s.Scenarios(), " ")+" "+s.Lasts().String())
			}
			must.Equal(t, "", test.want, got)
		})
	}
}

func TestLimit(t *testing.T) {
	s := Shard{Items: []Item{{"a", 4 * minute}, {"new", 0}}}
	if got, want := s.Limit(), 117*minute; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestGitHub(t *testing.T) {
	var out bytes.Buffer
	planned := []Shard{{1, []Item{{"added-nic", 393 * time.Second}}}, {2, []Item{{"node-drain", 203 * time.Second}, {"unpinned-image", 0}}}}
	must.NoError(t, GitHub(&out, planned, "cilium && !slow", "cilium=1.12.1"))
	goldentest.Compare(t, "github.json", out.String())
	if bytes.Count(out.Bytes(), []byte("\n")) != 1 {
		t.Error("a line of $GITHUB_OUTPUT is one line")
	}
}

// A machine that is stopped at its deadline leaves no report of what runs: relapse times out before.
func TestDeadline(t *testing.T) {
	s := Shard{Items: []Item{{"a", 4 * minute}}}
	if got := s.Deadline() - s.Limit(); got < 15*minute {
		t.Errorf("%s for set-up and tear-down", got)
	}
}
