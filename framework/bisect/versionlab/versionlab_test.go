package versionlab

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// A required version that is not published ends the search; any other unpublished version is skipped.
func TestUnavailable(t *testing.T) {
	l := Lab{Required: []string{"1.0.0"}}
	for version, want := range map[string]string{"1.0.0": "", "1.0.1": "not published"} {
		must.Equal(t, version, want, l.unavailable(version, &images.NotPublishedError{Err: errors.New("403 Forbidden")}))
	}
}

func TestEarlier(t *testing.T) {
	var releases images.Releases
	for _, v := range strings.Fields("1.11.9 1.12.0-rc1 1.12.0 1.12.3 1.12.4 1.12.5 1.13.0") {
		releases.Versions = append(releases.Versions, images.Release{Version: v})
	}
	for first, want := range map[string]string{"1.12.4": "1.12.0 1.12.3", "1.12.0": "", "1.13.0": "", "1.12.7": "1.12.0 1.12.3 1.12.4 1.12.5"} {
		must.Equal(t, first, want, strings.Join(Earlier(releases, first), " "))
	}
}

func TestCandidates(t *testing.T) {
	var releases images.Releases
	for _, v := range strings.Fields("0.9.0 1.0.0 1.0.1 1.1.0-rc1 1.1.0 1.1.1 2.0.0") {
		releases.Versions = append(releases.Versions, images.Release{Version: v})
	}
	builds := func(v string) error {
		unknown := &images.UnknownVersionError{Name: "c", Version: v, Known: []string{"others"}}
		switch v {
		case "0.9.0", "1.0.1", "2.0.0":
			return unknown
		case "0.8.0":
			lacking := *unknown
			lacking.Why = "c has no routes before 0.9.0"
			return errors.Join(unknown, &lacking) // of another image, and of its own
		}
		return nil
	}
	for _, test := range []struct {
		name string
		r    Range
		want string // versions, or the error
		not  string // versions that nothing builds, and why
	}{
		{"all that can be built", Range{}, "1.0.0 1.0.1 1.1.0 1.1.1", "1.0.1: no recipe builds it"},
		{"with pre-releases", Range{PreReleases: true}, "1.0.0 1.0.1 1.1.0-rc1 1.1.0 1.1.1", "1.0.1: no recipe builds it"},
		{"both ends", Range{From: "1.0.0", To: "1.1.0"}, "1.0.0 1.0.1 1.1.0", "1.0.1: no recipe builds it"},
		{"a pre-release as an end", Range{From: "1.1.0-rc1"}, "1.1.0-rc1 1.1.0 1.1.1", ""},
		{"ends that no list has", Range{From: "1.0.5", To: "1.1.2"}, "1.0.5 1.1.0 1.1.1 1.1.2", ""},
		{"an end that nothing builds", Range{From: "0.9.0"}, "no recipe builds c at version 0.9.0; there are others", ""},
		{"an end that lacks what it is about", Range{From: "0.8.0", To: "1.0.0"}, "0.8.0 0.9.0 1.0.0", "0.8.0: c has no routes before 0.9.0, 0.9.0: no recipe builds it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			versions, unbuildable, err := test.r.Candidates(releases, builds)
			got := strings.Join(versions, " ")
			if err != nil {
				got = err.Error()
			}
			not := each.Of(slices.SortedFunc(maps.Keys(unbuildable), bisect.Compare), func(v string) string { return v + ": " + unbuildable[v] })
			must.Equal(t, "versions, and those that nothing builds", [...]string{test.want, test.not}, [...]string{got, strings.Join(not, ", ")})
		})
	}
	_, _, err := Range{}.Candidates(images.Releases{}, builds)
	must.Is(t, err, ErrNoneBuilds)
}
