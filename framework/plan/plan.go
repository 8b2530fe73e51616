// Package plan spreads scenarios over machines, and writes that down for the engines
// that run such things: GitHub Actions, Argo Workflows and Kubernetes Jobs. It runs
// nothing itself.
package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Item is a scenario that one machine runs. It is never split: an affected and a fixed
// variant are worth most on one machine.
type Item struct {
	Scenario string
	// Lasts is how long it usually lasts, with its images built; zero where nobody
	// has measured it.
	Lasts time.Duration
}

// Shard is what one machine runs, one scenario after the other.
type Shard struct {
	Number int // from 1
	Items  []Item
}

// Shards spreads items over n shards at most, so that the longest of them is short:
// the longest item first, each to the shard that has least to do (Graham's LPT rule,
// at worst a third above the shortest possible). An item that was not measured is
// taken to last as long as the longest that was. No shard is empty; n is 1 at least.
func Shards(items []Item, n int) []Shard {
	var longest time.Duration
	for _, i := range items {
		longest = max(longest, i.Lasts)
	}
	longest = cmp.Or(longest, time.Minute) // of items of which none was measured, each is alike
	lasts := func(i Item) time.Duration { return cmp.Or(i.Lasts, longest) }
	sorted := slices.Clone(items)
	slices.SortStableFunc(sorted, func(a, b Item) int { return cmp.Compare(lasts(b), lasts(a)) })
	shards := make([]Shard, min(n, len(items)))
	loads := make([]time.Duration, len(shards))
	for _, i := range sorted {
		least := 0
		for s := range loads {
			if loads[s] < loads[least] {
				least = s
			}
		}
		shards[least].Items = append(shards[least].Items, i)
		loads[least] += lasts(i)
	}
	for i := range shards {
		shards[i].Number = i + 1
	}
	return shards
}

// Lasts is how long the shard usually lasts, without items that were not measured.
func (s Shard) Lasts() time.Duration {
	var sum time.Duration
	for _, i := range s.Items {
		sum += i.Lasts
	}
	return sum
}

// A shard on a machine without caches builds its images first: all of them are recorded
// with 27 minutes on two CPUs (cmd/bench/figures). The rest is room for machines that
// are slower than the one of the figures; it was chosen, not measured.
const (
	buildsWithin = 45 * time.Minute
	slowness     = 3
	notMeasured  = 20 * time.Minute
)

// Limit is when a shard is given up, on a machine without caches.
func (s Shard) Limit() time.Duration {
	limit := buildsWithin
	for _, i := range s.Items {
		limit += slowness * cmp.Or(i.Lasts, notMeasured)
	}
	return limit.Round(time.Minute)
}

// Scenarios are the names of what the shard runs.
func (s Shard) Scenarios() []string {
	var names []string
	for _, i := range s.Items {
		names = append(names, i.Scenario)
	}
	return names
}

// Run says what the shards run beside their scenarios: flags of relapse run. Empty
// ones are left out.
type Run struct {
	Label string // an expression of labels
	With  string // versions, as in "cilium=1.17.1,kube-proxy=1.13.2"
}

// args are those of relapse run for a shard.
func (r Run) args(s Shard, output string) []string {
	args := append([]string{"run"}, s.Scenarios()...)
	if r.Label != "" {
		args = append(args, "--label="+r.Label)
	}
	if r.With != "" {
		args = append(args, "--with="+r.With)
	}
	return append(args, "--output="+output, fmt.Sprintf("--timeout=%s", s.Limit()))
}
