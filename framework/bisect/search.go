// Package bisect finds the versions of a component that broke or fixed an incident. A Search chooses the next version
// to judge and skips versions that cannot be judged, and a Bisection stores each result.
//
// Vendors port fixes back. So each minor is searched as a branch of its own, in which the outcome is assumed to
// change at most once. A branch forks from the older branch at the older branch's first version: the first versions of
// both show whether the outcome changed between them. If versions before the older branch's first judged version may
// have brought the change, only a range is known.
package bisect

import (
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology/each"
)

// Outcome is the result for one version.
type Outcome string

const (
	Affected   Outcome = "affected"
	Unaffected Outcome = "not affected"
	// Skipped is a version that is not available, does not build or could not be judged.
	Skipped Outcome = "skipped"
)

// OutcomeOf is the outcome that a verdict gives a version.
func OutcomeOf(v framework.Verdict) Outcome {
	switch v {
	case framework.Reproduced, framework.Missed:
		return Affected
	case framework.Prevented, framework.Refused:
		return Unaffected
	}
	return Skipped
}

// Search is the state of a search. New makes one.
type Search struct {
	branches []branch
	earlier  []string           // of the first branch, below the range; they are not judged
	outcomes map[string]Outcome // of the versions judged so far
}

// branch has the versions of one minor, lowest first.
type branch struct {
	minor    string
	versions []string
}

// Compare orders versions without a leading v by semver. A pre-release is lower than its release.
func Compare(a, b string) int { return semver.Compare("v"+a, "v"+b) }

// New begins a search among versions without a leading v, in any order. Earlier are lower versions of their lowest
// minor, lowest first. The error names a text that is no version, or says that there are fewer than two versions.
func New(versions []string, earlier ...string) (*Search, error) {
	for _, v := range versions {
		if semver.Canonical("v"+v) != "v"+v {
			return nil, fmt.Errorf("%q is not a version: expected one such as 1.11.0", v)
		}
	}
	versions = slices.Clone(versions)
	slices.SortFunc(versions, Compare)
	versions = slices.Compact(versions)
	if len(versions) < 2 {
		return nil, fmt.Errorf("a bisection needs at least two versions: there are %q", versions)
	}
	s := &Search{earlier: earlier, outcomes: map[string]Outcome{}}
	for _, v := range versions {
		minor := Minor(v)
		if n := len(s.branches); n == 0 || s.branches[n-1].minor != minor {
			s.branches = append(s.branches, branch{minor: minor})
		}
		last := &s.branches[len(s.branches)-1]
		last.versions = append(last.versions, v)
	}
	return s, nil
}

// Tell records the outcome of a version.
func (s *Search) Tell(version string, o Outcome) { s.outcomes[version] = o }

// Next returns the version to judge next; ok is false when the search is complete.
func (s *Search) Next() (version string, ok bool) {
	for _, versions := range append([][]string{s.all()}, each.Of(s.branches, func(b branch) []string { return b.versions })...) {
		for _, ends := range [][]string{versions, s.reversed(versions)} {
			if v, unjudged := s.first(ends); unjudged {
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

// Left is the largest number of versions that Next will return if none is skipped.
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
		default: // one end is judged, or there is only one version
			left += 1 + bits.Len(uint(len(open)-1))
		}
	}
	return left
}

func (s *Search) all() []string {
	return slices.Concat(each.Of(s.branches, func(b branch) []string { return b.versions })...)
}

func (s *Search) reversed(versions []string) []string {
	versions = slices.Clone(versions)
	slices.Reverse(versions)
	return versions
}

// first returns the first version that was not skipped, and whether it is unjudged; empty if all were skipped.
func (s *Search) first(versions []string) (version string, unjudged bool) {
	for _, v := range versions {
		if s.outcomes[v] != Skipped {
			return v, s.outcomes[v] == ""
		}
	}
	return "", false
}

func (s *Search) open(versions []string) []string {
	return slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return s.outcomes[v] != "" })
}

// undecided are the unjudged versions of a branch between the two indexes of change; none if no version differs.
func (s *Search) undecided(b branch) []string {
	last, next, ok := s.change(b)
	if !ok {
		return nil
	}
	return s.open(b.versions[last+1 : next])
}

// change returns the indexes of the last version with the outcome of the branch's first version, and of the first
// version that differs, as far as is known.
func (s *Search) change(b branch) (last, next int, ok bool) {
	var begun Outcome
	for i, v := range b.versions {
		switch o := s.outcomes[v]; {
		case o == "" || o == Skipped:
		case begun == "" || o == begun:
			begun, last = o, i
		default:
			return last, i, true
		}
	}
	return 0, 0, false
}

type Result struct {
	// Alike is the outcome if both ends of every branch have the same. Then no version in between is searched.
	Alike Outcome
	// Unjudged are, with Alike, the versions of branches in which no version could be judged.
	Unjudged []string
	// Changes are where the outcome changes, lowest first. If both ends are alike, the incident came and went.
	Changes []Change
}

type Change struct {
	// Last is the last version before the change, in First's branch or an older one. First, with Outcome, is next.
	Last, First string
	Outcome     Outcome
	// Between are the skipped versions that may have brought the change instead of First: versions before First in its
	// branch, and branches in between without a judged version. If Last is of another branch, they begin with the
	// releases before the first judged version of Last's branch, also below the range.
	Between []string
}

// Exact reports whether the version of each change is known.
func (r Result) Exact() bool {
	return len(r.Changes) > 0 && !slices.ContainsFunc(r.Changes, func(c Change) bool { return len(c.Between) > 0 })
}

// Result returns the result so far.
func (s *Search) Result() Result {
	var r Result
	all := s.all()
	low, lowUnjudged := s.first(all)
	_, highUnjudged := s.first(s.reversed(all))
	if low == "" || lowUnjudged || highUnjudged {
		return r
	}
	whole, unjudgedBranches := true, []string(nil)
	before := -1 // the last branch with a judged version
	for i, b := range s.branches {
		first, unjudged := s.first(b.versions)
		_, open := s.first(s.reversed(b.versions))
		whole = whole && !unjudged && !open
		if first == "" {
			unjudgedBranches = append(unjudgedBranches, b.versions...)
		}
		if first == "" || unjudged {
			continue
		}
		if before >= 0 {
			was := s.branches[before]
			begun, _ := s.first(was.versions)
			if s.outcomes[begun] != s.outcomes[first] {
				between := append([]string{}, s.unknownHead(before)...)
				for _, skipped := range s.branches[before+1 : i] {
					between = append(between, skipped.versions...)
				}
				r.Changes = append(r.Changes, Change{
					Last: s.lastLike(was, s.outcomes[begun]), First: first, Outcome: s.outcomes[first],
					Between: append(between, b.versions[:slices.Index(b.versions, first)]...),
				})
			}
		}
		before = i
		if last, next, ok := s.change(b); ok {
			r.Changes = append(r.Changes, Change{
				Last: b.versions[last], First: b.versions[next], Outcome: s.outcomes[b.versions[next]],
				Between: b.versions[last+1 : next],
			})
		}
	}
	if whole && len(r.Changes) == 0 {
		r.Alike, r.Unjudged = s.outcomes[low], unjudgedBranches
	}
	return r
}

// unknownHead are the releases of a branch before its first judged version. Pre-releases are left out: their release
// has the same changes.
func (s *Search) unknownHead(i int) []string {
	b := s.branches[i]
	first, _ := s.first(b.versions)
	head := b.versions[:slices.Index(b.versions, first)]
	if i == 0 {
		head = slices.Concat(s.earlier, head)
	}
	return slices.DeleteFunc(slices.Clone(head), func(v string) bool { return semver.Prerelease("v"+v) != "" })
}

func (s *Search) lastLike(b branch, o Outcome) string {
	for _, v := range slices.Backward(b.versions) {
		if s.outcomes[v] == o {
			return v
		}
	}
	return ""
}
