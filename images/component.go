package images

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// component is what a component.yaml says: how a vendor's component is built, each way for a range of its versions.
type component struct {
	// Go is the language version of the go.mod files that are derived.
	Go      string            `json:"go"`
	Modules []vendorModule    `json:"modules"`
	Images  []componentRecipe `json:"images"`
	// Lacking says of images why no recipe builds some versions of them.
	Lacking []lacking `json:"lacking,omitempty"`

	folder string // absolute

	mu     sync.Mutex
	builds map[string]*versionBuild // by version
}

// versions is a range. Both ends are versions without a leading v. The pre-releases that lead to a version belong to
// it: pre-releases of From are in the range, and pre-releases of Below are not, unless the end is a pre-release itself.
type versions struct {
	From  string `json:"from,omitempty"`  // the lowest in the range
	Below string `json:"below,omitempty"` // the lowest above the range
}

func (r versions) contain(version string) bool {
	return semver.IsValid("v"+version) && reaches(version, r.From) && !reaches(version, r.Below)
}

func reaches(version, end string) bool {
	v := "v" + version
	if semver.Prerelease("v"+end) == "" {
		v = strings.TrimSuffix(v, semver.Prerelease(v))
	}
	return semver.Compare(v, "v"+end) >= 0
}

func (r versions) validate() error {
	switch {
	case !semver.IsValid("v" + r.From), !semver.IsValid("v" + r.Below):
		return fmt.Errorf("expected versions such as 1.11.0 as from and below, got %q and %q", r.From, r.Below)
	case semver.Compare("v"+r.From, "v"+r.Below) >= 0:
		return fmt.Errorf("from %s below %s holds no version", r.From, r.Below)
	}
	return nil
}

// vendorModule is the Go module of a range of versions, and where our go.mod differs from the vendor's own.
type vendorModule struct {
	versions
	Module string `json:"module"`
	// Go is the language version in place of the component's; vendorGo keeps the vendor's.
	Go string `json:"go,omitempty"`
	// Published maps a version to the module version that holds it, for
	// vendors that do not tag their modules. Others publish 1.2.3 as v1.2.3.
	Published map[string]string `json:"published,omitempty"`
	// Unlisted are modules that Go's checksum database does not have: the one that holds the
	// component, or some that it requires. Their checksums are taken as they come when a version is
	// derived for the first time, and compared with its go.sum from then on.
	Unlisted []string `json:"unlisted,omitempty"`
	// Requirements is a go.mod in the component's folder in place of the vendor's, for releases that have none.
	Requirements string `json:"requirements,omitempty"`
	// AtLeast raises what the vendor requires, by module path.
	AtLeast map[string]string `json:"atLeast,omitempty"`
	// Replace maps a module path to the path and the version that take its place.
	Replace map[string]string `json:"replace,omitempty"`
	// Unreplaced are modules that the vendor replaces, and that are taken themselves, as the vendor requires them.
	Unreplaced []string `json:"unreplaced,omitempty"`
	// Unused are packages that programs import and never call in a lab: they are compiled without optimisation.
	Unused  []string `json:"unused,omitempty"`
	Staging *staging `json:"staging,omitempty"`
}

// vendorGo, as a language version, stands for the one in the vendor's own go.mod.
const vendorGo = "vendor"

type staging struct {
	Folder string `json:"folder"` // in the release's module
	// Modules are the modules that are taken from the tree.
	Modules []string `json:"modules,omitempty"`
	// Published is the version under which a release also publishes the modules that its
	// go.mod takes from the folder, such as v0.${minor}.${patch}.
	Published string `json:"published,omitempty"`
}

type componentRecipe struct {
	Recipe
	versions
	// Versions are the versions in the catalogue.
	Versions []string `json:"versions"`
}

// lacking is why versions of an image are in no recipe's range: they have not got what the image is for.
type lacking struct {
	versions
	Ref string `json:"ref"` // as in a recipe
	Why string `json:"why"` // a clause with a subject
}

func (m vendorModule) at(version string) module.Version {
	return module.Version{Path: m.Module, Version: cmp.Or(m.Published[version], "v"+version)}
}

const componentFile = "component.yaml"

// recipes are the recipes of the catalogue's versions; the errors are all that is wrong with the file.
func (c *component) recipes() (all []*Recipe, errs []error) {
	wrong := func(field string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", filepath.Join(c.folder, componentFile), field, err))
		}
	}
	for i, m := range c.Modules {
		wrong(fmt.Sprintf("modules[%d]", i), m.versions.validate())
		wrong(fmt.Sprintf("modules[%d].module", i), module.CheckPath(m.Module))
	}
	for i, l := range c.Lacking {
		wrong(fmt.Sprintf("lacking[%d]", i), l.versions.validate())
		if l.Why == "" || !slices.ContainsFunc(c.Images, func(image componentRecipe) bool { return image.Ref == l.Ref }) {
			wrong(fmt.Sprintf("lacking[%d]", i), fmt.Errorf("expected the ref of an image and why, got %q and %q", l.Ref, l.Why))
		}
	}
	for i, image := range c.Images {
		wrong(fmt.Sprintf("images[%d]", i), image.versions.validate())
		if !strings.Contains(image.Ref, "${version}") {
			wrong(fmt.Sprintf("images[%d].ref", i), fmt.Errorf("expected ${version} in %q", image.Ref))
		}
		for _, version := range image.Versions {
			r, err := c.recipe(image, version)
			wrong(fmt.Sprintf("images[%d].versions", i), err)
			all = append(all, r)
		}
	}
	return all, errs
}

func (c *component) recipe(image componentRecipe, version string) (*Recipe, error) {
	if !image.contain(version) {
		return nil, fmt.Errorf("version %s is not from %s and below %s", version, image.From, image.Below)
	}
	build, err := c.build(version)
	if err != nil {
		return nil, err
	}
	r := image.Recipe
	r.folder, r.build = c.folder, build
	if r.Component != "" {
		r.Version, r.Module = version, build.vendor.Module
	}
	return &r, r.expand(variables(build.vendor.at(version), version))
}

// build returns how programs of a version are built: one value a version, so that all its images share compilers.
func (c *component) build(version string) (*versionBuild, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.builds[version]; b != nil {
		return b, nil
	}
	i := slices.IndexFunc(c.Modules, func(m vendorModule) bool { return m.contain(version) })
	if i < 0 {
		return nil, fmt.Errorf("no entry of modules has version %s in its range", version)
	}
	b := &versionBuild{component: c, vendor: c.Modules[i], version: version}
	if slices.Contains(c.catalogued(), version) {
		b.file = filepath.Join(c.folder, "versions", version+".mod")
	}
	c.builds[version] = b
	return b, nil
}

func (c *component) catalogued() []string {
	var all []string
	for _, image := range c.Images {
		all = append(all, image.Versions...)
	}
	slices.SortFunc(all, func(a, b string) int { return semver.Compare("v"+a, "v"+b) })
	return slices.Compact(all)
}

// variables are what a recipe may name as ${NAME}: the version, its first three numbers, the module
// that publishes it, and, where that names a commit, the commit's first twelve digits.
func variables(vendor module.Version, version string) *strings.Replacer {
	major, rest, _ := strings.Cut(version, ".")
	minor, patch, _ := strings.Cut(rest, ".")
	revision, err := module.PseudoVersionRev(vendor.Version)
	if err != nil {
		revision = "" // a tag
	}
	return strings.NewReplacer("${version}", version, "${major}", major, "${minor}", minor, "${patch}", patch,
		"${module}", vendor.Path, "${revision}", revision)
}
