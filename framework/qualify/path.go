package qualify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/images"
)

// Path is the way from one version to the other through the vendor's releases. It is
// as good as the lists that it is made of.
type Path struct {
	// Skipped are the minors between those of From and To, lowest first.
	Skipped []string `json:"skipped"`
	// Newer are the releases of To's minor after To, lowest first.
	Newer []Release `json:"newer"`
	// Unlisted are those of From and To that no list has.
	Unlisted []string `json:"unlisted"`
	// NotListed are modules whose versions the module proxy does not list.
	NotListed []string `json:"not_listed"`
}

// Release is a version that a list has.
type Release struct {
	Version string `json:"version"`
	// Buildable is set where a recipe builds it, and Built where an image of it is in
	// the cache. Whether the proxy serves one that is not built shows when it is.
	Buildable bool `json:"buildable"`
	Built     bool `json:"built"`
}

// PathOf finds the way between two versions in lists of releases.
func PathOf(r images.Releases, from, to string) Path {
	p := Path{Skipped: []string{}, Newer: []Release{}, Unlisted: []string{}, NotListed: []string{}}
	listed := map[string]bool{}
	for _, release := range r.Versions {
		v := release.Version
		listed[v] = true
		minor := minorOf(v)
		switch {
		case semver.Prerelease("v"+v) != "":
		case semver.Compare("v"+minor, "v"+minorOf(from)) > 0 && semver.Compare("v"+minor, "v"+minorOf(to)) < 0:
			if !slices.Contains(p.Skipped, minor) {
				p.Skipped = append(p.Skipped, minor)
			}
		case minor == minorOf(to) && bisect.Compare(v, to) > 0:
			p.Newer = append(p.Newer, Release{Version: v, Buildable: len(release.Images) > 0, Built: len(release.Built) > 0})
		}
	}
	for _, v := range []string{from, to} {
		if !listed[v] {
			p.Unlisted = append(p.Unlisted, v)
		}
	}
	for _, module := range slices.Sorted(maps.Keys(r.Refused)) {
		if r.Refused[module] != nil {
			p.NotListed = append(p.NotListed, module)
		}
	}
	return p
}

func minorOf(version string) string { return strings.TrimPrefix(semver.MajorMinor("v"+version), "v") }

// rows are the path's.
func (p Path) rows(from, to string) []Row {
	minors := Row{Part: PartPath, Name: "minors", From: minorOf(from), To: minorOf(to), State: Fine, Says: "no minor is skipped"}
	if len(p.Skipped) > 0 {
		skipped := strings.Join(p.Skipped, ", ")
		minors.During, minors.State = "skips "+skipped, Warning
		minors.Says = fmt.Sprintf("it skips %s, and vendors test from one minor to the next", skipped)
	}
	releases := Row{Part: PartPath, Name: "releases", From: from, To: to, State: Fine, Says: fmt.Sprintf("no list has a newer release of %s", minorOf(to))}
	if n := len(p.Newer); n > 0 {
		var buildable []string
		for _, r := range p.Newer {
			if r.Buildable {
				buildable = append(buildable, r.Version)
			}
		}
		newest := p.Newer[n-1].Version
		releases.State = Warning
		releases.Says = fmt.Sprintf("%s is not the newest release of %s, which is %s", to, minorOf(to), newest)
		switch len(buildable) {
		case 0:
			releases.Says += "; there is no recipe for a newer one"
		case n:
			releases.Says += "; there are recipes for all from " + p.Newer[0].Version + " on"
		default:
			releases.Says += "; there are recipes for " + strings.Join(buildable, ", ")
		}
	}
	if len(p.Unlisted) > 0 {
		releases.Says += "; not in any list: " + strings.Join(p.Unlisted, ", ")
	}
	if len(p.NotListed) > 0 {
		releases.Says += "; the module proxy does not list the versions of " + strings.Join(p.NotListed, ", ")
	}
	return []Row{minors, releases}
}
