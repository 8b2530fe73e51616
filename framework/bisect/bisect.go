// Package bisect finds between which versions of a component something changed:
// which broke it, or fixed it. It says which version is to be judged next, is told
// what became of that, and goes round versions that cannot be judged. It knows
// nothing of how a version is judged.
//
// Vendors port fixes back. So versions are searched branch by branch, a branch being
// the versions of one minor, and within each an outcome is taken to change once at
// most. A branch leaves the one before it at that one's beginning: whether the change
// came between two branches is seen by the first versions of both.
package bisect

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// Outcome is what became of a version.
type Outcome string

// Outcomes.
const (
	Affected   Outcome = "affected"
	Unaffected Outcome = "not affected"
	// Skipped is a version of which nobody knows: it cannot be had, built or judged.
	Skipped Outcome = "skipped"
)

// Search is a search under way. It is made by New.
type Search struct {
	branches []branch
	told     map[string]Outcome
}

// branch are the versions of one minor, lowest first.
type branch struct {
	minor    string
	versions []string
}

// Compare orders versions without a leading v by semver: below zero if a is lower
// than b. A pre-release is lower than what it leads to.
func Compare(a, b string) int { return semver.Compare("v"+a, "v"+b) }

// New begins a search among versions without a leading v, in any order. Lowest and
// highest of them are its ends. The error says which one is no version, or that there
// are fewer than two.
func New(versions []string) (*Search, error) {
	for _, v := range versions {
		if semver.Canonical("v"+v) != "v"+v {
			return nil, fmt.Errorf("%q is no version: expected one such as 1.11.0", v)
		}
	}
	versions = slices.Clone(versions)
	slices.SortFunc(versions, Compare)
	versions = slices.Compact(versions)
	if len(versions) < 2 {
		return nil, fmt.Errorf("there must be two versions at least to look between: there are %q", versions)
	}
	s := &Search{told: map[string]Outcome{}}
	for _, v := range versions {
		minor := strings.TrimPrefix(semver.MajorMinor("v"+v), "v")
		if n := len(s.branches); n == 0 || s.branches[n-1].minor != minor {
			s.branches = append(s.branches, branch{minor: minor})
		}
		last := &s.branches[len(s.branches)-1]
		last.versions = append(last.versions, v)
	}
	return s, nil
}

// Tell says what became of a version.
func (s *Search) Tell(version string, o Outcome) { s.told[version] = o }

// Next is the version that is to be judged next; ok is false when there is none:
// the result stands.
func (s *Search) Next() (version string, ok bool) {
	all := s.all()
	for _, ends := range [][]string{all, s.reversed(all)} {
		if v, untold := s.first(ends); untold {
			return v, true
		}
	}
	if s.Result().Alike != "" {
		return "", false
	}
	for _, b := range s.branches {
		for _, ends := range [][]string{b.versions, s.reversed(b.versions)} {
			if v, untold := s.first(ends); untold {
				return v, true
			}
		}
	}
	for _, b := range s.branches {
		if between := s.undecided(b); len(between) > 0 {
			return between[len(between)/2], true
		}
	}
	return "", false
}

// Left is how many versions Next will name at most, as long as none is skipped.
func (s *Search) Left() int {
	if _, more := s.Next(); !more {
		return 0
	}
	left := 0
	for _, b := range s.branches {
		open := s.open(b.versions)
		if len(open) == 0 {
			continue
		}
		_, noLow := s.first(b.versions)
		_, noHigh := s.first(s.reversed(b.versions))
		switch {
		case !noLow && !noHigh:
			left += bits.Len(uint(len(s.undecided(b))))
		case noLow && noHigh && len(open) > 1:
			left += 2 + bits.Len(uint(len(open)-2))
		default: // one end is told, or there is one version alone
			left += 1 + bits.Len(uint(len(open)-1))
		}
	}
	return left
}

func (s *Search) all() []string {
	var all []string
	for _, b := range s.branches {
		all = append(all, b.versions...)
	}
	return all
}

func (s *Search) reversed(versions []string) []string {
	versions = slices.Clone(versions)
	slices.Reverse(versions)
	return versions
}

// first is the first of some versions that was not skipped; untold says that nobody
// has judged it yet. It is empty where all were skipped.
func (s *Search) first(versions []string) (version string, untold bool) {
	for _, v := range versions {
		if s.told[v] != Skipped {
			return v, s.told[v] == ""
		}
	}
	return "", false
}

// open are those of some versions that nobody has judged yet.
func (s *Search) open(versions []string) []string {
	return slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return s.told[v] != "" })
}

// undecided are the open versions between the last of a branch that is like its first
// one and the first that is not; none where all of the branch are alike.
func (s *Search) undecided(b branch) []string {
	last, next, ok := s.change(b)
	if !ok {
		return nil
	}
	return s.open(b.versions[last+1 : next])
}

// change is where the outcome of a branch changes, as far as is known: the indexes of
// the last version that is like the first one and of the first that is not.
func (s *Search) change(b branch) (last, next int, ok bool) {
	var begun Outcome
	for i, v := range b.versions {
		switch o := s.told[v]; {
		case o == "" || o == Skipped:
		case begun == "" || o == begun:
			begun, last = o, i
		default:
			return last, i, true
		}
	}
	return 0, 0, false
}

// Result is what a search has come to.
type Result struct {
	// Alike is the outcome of both ends, where they have the same: then nothing is
	// looked for between them.
	Alike Outcome
	// Changes are where the outcome changes, lowest first. Where no version can be
	// judged there is none.
	Changes []Change
}

// Change is where the outcome becomes another one.
type Change struct {
	// Last is the last version before, of the branch of First or of the one before
	// it; First is the first version after, and Outcome what that is.
	Last, First string
	Outcome     Outcome
	// Between are the skipped versions that may have brought the change as well:
	// those of First's branch before it, and those of branches of which nothing could
	// be judged, between Last's and First's.
	Between []string
}

// Exact tells whether it is known which versions the outcome has changed with.
func (r Result) Exact() bool {
	return len(r.Changes) > 0 && !slices.ContainsFunc(r.Changes, func(c Change) bool { return len(c.Between) > 0 })
}

// Result is what the search has come to so far.
func (s *Search) Result() Result {
	var r Result
	all := s.all()
	low, lowUntold := s.first(all)
	high, highUntold := s.first(s.reversed(all))
	if low == "" || lowUntold || highUntold {
		return r
	}
	if s.told[low] == s.told[high] {
		r.Alike = s.told[low]
		return r
	}
	before := -1 // the branch before that has a version which was judged
	for i, b := range s.branches {
		first, untold := s.first(b.versions)
		if first == "" || untold {
			continue
		}
		if before >= 0 {
			was := s.branches[before]
			begun, _ := s.first(was.versions)
			if s.told[begun] != s.told[first] {
				between := []string{}
				for _, unjudged := range s.branches[before+1 : i] {
					between = append(between, unjudged.versions...)
				}
				r.Changes = append(r.Changes, Change{
					Last: s.lastLike(was, s.told[begun]), First: first, Outcome: s.told[first],
					Between: append(between, b.versions[:slices.Index(b.versions, first)]...),
				})
			}
		}
		before = i
		if last, next, ok := s.change(b); ok {
			r.Changes = append(r.Changes, Change{
				Last: b.versions[last], First: b.versions[next], Outcome: s.told[b.versions[next]],
				Between: b.versions[last+1 : next],
			})
		}
	}
	return r
}

// lastLike is the last version of a branch that has this outcome.
func (s *Search) lastLike(b branch, o Outcome) string {
	for _, v := range slices.Backward(b.versions) {
		if s.told[v] == o {
			return v
		}
	}
	return ""
}
