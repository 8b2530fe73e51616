package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// releasesFile lists a vendor's releases: versions without a leading v, any number in a line, comments behind a #.
const releasesFile = "releases.txt"

// Releases are the versions of a component that there are, as far as is known without asking for each of them.
type Releases struct {
	Ways []Way
	// Versions are the versions of the vendor's list, the proxy's lists and the catalogue, lowest first, served or not.
	Versions []Release
	// Refused says of modules why the proxy did not list their versions, by path.
	Refused map[string]error
}

// Way is one of the ways in which images of a component are built, and for which versions.
type Way struct {
	Image       string // the ref without its tag
	Form        Form
	From, Below string
	// Unlisted are modules that Go's checksum database lacks: the first build takes their checksums as they come.
	Unlisted []string
}

// Release is one version.
type Release struct {
	Version string
	// Images are the refs that can be built of it, none if it is in no range; Built are the refs in the cache.
	Images, Built []string
	// Substitutes are known of the catalogue's versions.
	Substitutes []Substitute
}

// Releases lists the versions of a component, which is named as its images name it or as its folder
// is called. It asks the module proxy for its lists, and for no version: one that the proxy has not
// got shows when it is built. The error is an *UnknownVersionError if there is no such component.
func (c *Catalogue) Releases(ctx context.Context, name string) (Releases, error) {
	described, err := c.describing(name)
	if err != nil {
		return Releases{}, err
	}
	found := Releases{Refused: map[string]error{}}
	versions, err := described.releases()
	if err != nil {
		return Releases{}, err
	}
	for _, image := range described.named(name) {
		found.Ways = append(found.Ways, Way{
			Image: image.name(), Form: image.Form, From: image.From, Below: image.Below, Unlisted: described.unlisted(image.versions),
		})
		versions = append(versions, image.Versions...)
	}
	for _, m := range described.Modules {
		if _, asked := found.Refused[m.Module]; asked || len(m.Published) > 0 {
			continue // its versions have other names than its releases
		}
		listed, err := listed(ctx, m.Module)
		found.Refused[m.Module] = err
		for _, v := range listed {
			versions = append(versions, strings.TrimPrefix(v, "v"))
		}
	}
	built, err := c.built()
	if err != nil {
		return Releases{}, err
	}
	slices.SortFunc(versions, func(a, b string) int { return semver.Compare("v"+a, "v"+b) })
	for _, version := range slices.Compact(versions) {
		r, err := c.release(described, name, version, built)
		if err != nil {
			return Releases{}, err
		}
		found.Versions = append(found.Versions, r)
	}
	return found, nil
}

// release is one version of a component; built are the refs of all images in the cache.
func (c *Catalogue) release(described *component, name, version string, built map[string]bool) (Release, error) {
	r := Release{Version: version}
	for _, image := range described.named(name) {
		if !described.has(image, version) {
			continue
		}
		ref := strings.ReplaceAll(image.Ref, "${version}", version)
		r.Images = append(r.Images, ref)
		if built[ref] {
			r.Built = append(r.Built, ref)
		}
	}
	if !slices.Contains(described.catalogued(), version) {
		return r, nil
	}
	b, err := described.build(version)
	if err == nil {
		r.Substitutes, err = b.substitutes()
	}
	return r, err
}

// describing is the component of a name: its folder's, or its images'.
func (c *Catalogue) describing(name string) (*component, error) {
	var names []string
	for _, described := range c.components {
		if len(described.named(name)) > 0 {
			return described, nil
		}
		names = append(names, filepath.Base(described.folder))
		for _, image := range described.Images {
			if image.Component != "" {
				names = append(names, image.Component)
			}
		}
	}
	slices.Sort(names)
	return nil, &UnknownVersionError{Name: name, Known: slices.Compact(names)}
}

// named are the images of a vendor's program: all for the folder's name, or the component's for a component's name.
func (c *component) named(name string) []componentRecipe {
	return slices.DeleteFunc(slices.Clone(c.Images), func(image componentRecipe) bool {
		return image.Component == "" || name != image.Component && name != filepath.Base(c.folder)
	})
}

func (r componentRecipe) name() string {
	name, _, _ := strings.Cut(strings.Replace(r.Ref, ":v${version}", ":${version}", 1), ":${version}")
	return name
}

// has reports whether an image of a version can be built, as far as the recipe says.
func (c *component) has(image componentRecipe, version string) bool {
	return image.contain(version) && slices.ContainsFunc(c.Modules, func(m vendorModule) bool {
		return m.contain(version) && (len(m.Published) == 0 || m.Published[version] != "")
	})
}

// unlisted are the modules of a range that the checksum database does not have.
func (c *component) unlisted(r versions) []string {
	var all []string
	for _, m := range c.Modules {
		if m.contain(r.From) || r.contain(m.From) {
			all = append(all, m.Unlisted...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// releases reads the vendor's list; a component without one has none.
func (c *component) releases() ([]string, error) {
	file := filepath.Join(c.folder, releasesFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the vendor's releases: %w", err)
	}
	var all []string
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		for _, version := range strings.Fields(line) {
			if semver.Canonical("v"+version) != "v"+version {
				return nil, fmt.Errorf("%s:%d: %q: expected a version such as 1.11.0 or 1.12.0-rc1", file, number, version)
			}
			all = append(all, version)
		}
	}
	return all, nil
}

// built are the refs that the cache holds, of any state of their recipes.
func (c *Catalogue) built() (map[string]bool, error) {
	entries, err := c.cache.entries()
	if err != nil {
		return nil, err
	}
	refs := map[string]bool{}
	for _, e := range entries {
		if e.damage == nil {
			refs[e.Annotations[annotationRef]] = true
		}
	}
	return refs, nil
}

const listWithin = 30 * time.Second

func listed(ctx context.Context, path string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, listWithin)
	defer cancel()
	// Outside of every module, so that no other go.mod is read.
	out, err := output(goCommand(ctx, os.TempDir(), "list", "-mod=mod", "-m", "-versions", "-json", path))
	if err != nil {
		return nil, err
	}
	var found struct{ Versions []string }
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("reading go's answer on %s: %w", path, err)
	}
	return found.Versions, nil
}

// NotPublishedError says that the module proxy does not serve a version, or something that it requires.
type NotPublishedError struct {
	Module module.Version
	// Required is set where only a module that it requires is not there: Refused, as far as the go command names it.
	Required bool
	Refused  module.Version
	// Unverified is a module that the proxy serves and Go's checksum database has not got; empty for another reason.
	Unverified string
	Err        error // what the go command says
}

func (e *NotPublishedError) Error() string {
	what := e.Module.String()
	if e.Required {
		what = "something that " + what + " requires"
		if e.Refused.Path != "" {
			what = e.Refused.String() + ", which " + e.Module.String() + " requires,"
		}
	}
	if e.Unverified != "" {
		return fmt.Sprintf("%s is not in Go's checksum database, which would show that it is what others get; "+
			"GONOSUMDB=%s in the environment takes it all the same", what, e.Unverified)
	}
	why := refusal(e.Err.Error())
	if _, said, found := strings.Cut(why, "exit status 1: go: "); found {
		why = said
	}
	return fmt.Sprintf("%s is not published: %s", what, why)
}

// RelapseStatus is 2: bad input.
func (*NotPublishedError) RelapseStatus() int { return 2 }

func (e *NotPublishedError) Unwrap() error { return e.Err }

// refusals are what the go command says of a module version that a proxy, or a repository, has not got.
var refusals = []string{"403 Forbidden", "404 Not Found", "410 Gone", "unknown revision"}

// refusal is the line with which the go command refuses a module, between downloads and the server's words.
func refusal(text string) string {
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(refusals, func(w string) bool { return strings.Contains(line, w) }) {
			return strings.TrimSpace(line)
		}
	}
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// refused is how the go command names a module version that it does not get.
var refused = regexp.MustCompile(`([^\s:@]+)@(v[^\s:@/]+)(?:/go\.mod)?: (?:reading|verifying|invalid version)`)

// UnreachableError says that the module proxy did not answer. What is built already can be used without it.
type UnreachableError struct {
	Module module.Version
	Err    error // what the go command says
}

func (e *UnreachableError) Error() string {
	// The go command says it once for each package; the last line has the cause.
	why := strings.TrimSpace(e.Err.Error())
	why = why[strings.LastIndexByte(why, '\n')+1:]
	return fmt.Sprintf("%s is not available: the module proxy does not answer: %s", e.Module, strings.TrimSpace(why))
}

// RelapseStatus is 3: the machine cannot run it.
func (*UnreachableError) RelapseStatus() int { return 3 }

func (e *UnreachableError) Unwrap() error { return e.Err }

var silences = []string{
	"dial tcp", "no such host", "connection refused", "network is unreachable", "i/o timeout", "TLS handshake timeout",
	"GOPROXY=off",
}

var lookup = regexp.MustCompile(`/lookup/([^@\s]+)@[^:\s]+`)

// unavailable makes a *NotPublishedError or an *UnreachableError of the go command's error.
func unavailable(err error, v module.Version) error {
	says := func(words []string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(err.Error(), w) })
	}
	switch {
	case err == nil:
		return nil
	case says(refusals):
		missing := &NotPublishedError{Module: v, Required: !strings.Contains(err.Error(), v.String()+":"), Err: err}
		if named := refused.FindAllStringSubmatch(refusal(err.Error()), -1); len(named) > 0 {
			last := named[len(named)-1] // before it are the modules that require it
			missing.Refused = module.Version{Path: last[1], Version: last[2]}
			missing.Required = missing.Refused != v
		}
		if asked := lookup.FindStringSubmatch(err.Error()); asked != nil {
			missing.Required = asked[0] != "/lookup/"+v.String()
			path, _ := module.UnescapePath(asked[1]) // as people write it
			missing.Unverified = cmp.Or(path, asked[1])
		}
		return missing
	case says(silences):
		return &UnreachableError{Module: v, Err: err}
	}
	return err
}
