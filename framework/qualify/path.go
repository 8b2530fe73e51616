package qualify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/each"
)

// Path is the path between two versions through the vendor's releases, as far as their lists are complete.
type Path struct {
	// Skipped are the minors between From's minor and To's minor, lowest first.
	Skipped []string `json:"skipped"`
	// Newer are the releases of To's minor after To, lowest first.
	Newer []Release `json:"newer"`
	// Unlisted has From and To if they are in no list.
	Unlisted []string `json:"unlisted"`
	// NotListed are modules whose versions the module proxy does not list.
	NotListed []string `json:"not_listed"`
}

type Release struct {
	Version string `json:"version"`
	// Buildable is set if a recipe builds it. Only a build shows whether the module proxy serves its source.
	Buildable bool `json:"buildable"`
}

func PathOf(r images.Releases, from, to string) Path {
	p := Path{Skipped: []string{}, Newer: []Release{}, Unlisted: []string{}, NotListed: []string{}}
	listed := map[string]bool{}
	low, high := "v"+bisect.Minor(from), "v"+bisect.Minor(to)
	if bisect.Compare(from, to) > 0 {
		low, high = high, low
	}
	for _, release := range r.Versions {
		v := release.Version
		listed[v] = true
		minor := bisect.Minor(v)
		switch {
		case semver.Prerelease("v"+v) != "":
		case semver.Compare("v"+minor, low) > 0 && semver.Compare("v"+minor, high) < 0:
			if !slices.Contains(p.Skipped, minor) {
				p.Skipped = append(p.Skipped, minor)
			}
		case minor == bisect.Minor(to) && bisect.Compare(v, to) > 0:
			p.Newer = append(p.Newer, Release{Version: v, Buildable: len(release.Images) > 0})
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

func (p Path) rows(from, to string) []Row {
	minors := Row{Part: PartPath, Name: "minors", From: bisect.Minor(from), To: bisect.Minor(to), State: Fine, Says: "no minor is skipped"}
	if len(p.Skipped) > 0 {
		skipped := strings.Join(p.Skipped, ", ")
		minors.During, minors.State = "skips "+skipped, Warning
		minors.Says = fmt.Sprintf("the upgrade skips %s; vendors test upgrades from one minor to the next", skipped)
	}
	if bisect.Compare(from, to) > 0 {
		minors.State = Warning
		minors.Says = fmt.Sprintf("%s is older than %s: a downgrade, which vendors support as the way back "+
			"from an upgrade at most; %s", to, from, minors.Says)
	}
	releases := Row{Part: PartPath, Name: "releases", From: from, To: to, State: Fine}
	releases.Says = "no list has a newer release of " + bisect.Minor(to)
	if n := len(p.Newer); n > 0 {
		built := each.Where(p.Newer, func(r Release) bool { return r.Buildable })
		buildable := each.Of(built, func(r Release) string { return r.Version })
		newest := p.Newer[n-1].Version
		releases.State = Warning
		releases.Says = fmt.Sprintf("%s is not the newest release of %s, which is %s", to, bisect.Minor(to), newest)
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
