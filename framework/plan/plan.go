// Package plan distributes scenarios over machines, and writes the result for GitHub
// Actions. It runs nothing.
package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/topology/each"
)

// Item is a scenario that one machine runs. It is never split: an affected and a fixed
// variant are best compared on one machine.
type Item struct {
	Scenario string
	// Lasts is how long it usually takes, with its images built; zero if it was not measured.
	Lasts time.Duration
}

// Shard is what one machine runs, one scenario after another.
type Shard struct {
	Number int // from 1
	Items  []Item
}

// Shards distributes items over at most n shards, so that the longest shard is short: the
// longest item first, each to the shard with the least work (Graham's LPT rule, at worst a
// third longer than the optimum). An item that was not measured counts like the longest
// one. No shard is empty; n must be at least 1.
func Shards(items []Item, n int) []Shard {
	var longest time.Duration
	for _, i := range items {
		longest = max(longest, i.Lasts)
	}
	longest = cmp.Or(longest, time.Minute) // if none was measured, all count the same
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

// Lasts is how long the shard usually takes, without items that were not measured.
func (s Shard) Lasts() time.Duration {
	var sum time.Duration
	for _, i := range s.Items {
		sum += i.Lasts
	}
	return sum
}

// A shard on a machine without caches builds its images first: all of them take 27 minutes
// on two CPUs (framework/figures). The rest allows for machines that are slower than the
// one of the figures; it was chosen, not measured.
const (
	buildsWithin = 45 * time.Minute
	slowness     = 3
	notMeasured  = 20 * time.Minute
)

// Limit is when relapse cancels the run of a shard, on a machine without caches.
func (s Shard) Limit() time.Duration {
	limit := buildsWithin
	for _, i := range s.Items {
		limit += slowness * cmp.Or(i.Lasts, notMeasured)
	}
	return limit.Round(time.Minute)
}

// besides is the time of a shard's machine besides its run: set-up, tear-down and
// artifacts. It was chosen, not measured.
const besides = 20 * time.Minute

// Deadline is when the machine of a shard is stopped. relapse times out at Limit, which is
// earlier: a machine that is stopped leaves no report of what runs on it.
func (s Shard) Deadline() time.Duration { return s.Limit() + besides }

// Scenarios are the names of what the shard runs.
func (s Shard) Scenarios() []string {
	return each.Of(s.Items, func(i Item) string { return i.Scenario })
}
