package versionlab

import (
	"cmp"
	"errors"
	"slices"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/images"
)

// ErrNoneBuilds says that no recipe builds any version of a component.
var ErrNoneBuilds = errors.New("no version can be built")

// Range selects versions of a component. An empty end is the outermost version that can be built.
type Range struct {
	From, To    string // included
	PreReleases bool
}

// Candidates are the versions of a range, lowest first. Unbuildable has the reason for each version that no recipe
// builds. builds returns why a version cannot be built. Its error is returned for an end of the range, unless the
// version is known to lack what the component needs. The other error is ErrNoneBuilds.
func (r Range) Candidates(
	releases images.Releases, builds func(version string) error,
) (versions []string, unbuildable map[string]string, err error) {
	unbuildable = map[string]string{}
	var buildable []string
	for _, end := range r.ends() {
		if err := builds(end); err != nil {
			if unbuildable[end] = lacks(err); unbuildable[end] == "" {
				return nil, nil, err
			}
		}
		versions = append(versions, end) // even if no list has it
	}
	for _, release := range releases.Versions {
		v := release.Version
		if !r.between(v) || semver.Prerelease("v"+v) != "" && !r.PreReleases {
			continue
		}
		versions = append(versions, v)
		if err := builds(v); err != nil {
			unbuildable[v] = cmp.Or(lacks(err), "no recipe builds it")
			continue
		}
		buildable = append(buildable, v)
	}
	if r.From == "" || r.To == "" {
		ends := slices.SortedFunc(slices.Values(append(r.ends(), buildable...)), bisect.Compare)
		if len(ends) == 0 {
			return nil, nil, ErrNoneBuilds
		}
		whole := Range{From: ends[0], To: ends[len(ends)-1]}
		outside := func(v string) bool { return !whole.between(v) && v != whole.From && v != whole.To }
		versions = slices.DeleteFunc(versions, outside)
		for v := range unbuildable {
			if outside(v) {
				delete(unbuildable, v)
			}
		}
	}
	slices.SortFunc(versions, bisect.Compare)
	return versions, unbuildable, nil
}

// Earlier are the releases (no pre-releases) of the first version's minor that are lower than it, lowest first.
func Earlier(releases images.Releases, first string) []string {
	var earlier []string
	for _, release := range releases.Versions {
		v := release.Version
		if bisect.Minor(v) == bisect.Minor(first) && bisect.Compare(v, first) < 0 && semver.Prerelease("v"+v) == "" {
			earlier = append(earlier, v)
		}
	}
	slices.SortFunc(earlier, bisect.Compare)
	return earlier
}

func (r Range) ends() []string {
	return slices.DeleteFunc([]string{r.From, r.To}, func(v string) bool { return v == "" })
}

func (r Range) between(v string) bool {
	return (r.From == "" || bisect.Compare(v, r.From) > 0) && (r.To == "" || bisect.Compare(v, r.To) < 0)
}

// lacks returns what a version does not have, so that no recipe builds it; empty: not known.
func lacks(err error) string {
	// Any of several images may be the image of the component under test.
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range several.Unwrap() {
			if why := lacks(err); why != "" {
				return why
			}
		}
		return ""
	}
	if unknown, ok := errors.AsType[*images.UnknownVersionError](err); ok {
		return unknown.Why
	}
	return ""
}
