package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"sigs.k8s.io/yaml"
)

// Form tells how much of a vendor's component an image holds.
type Form string

// Forms of an image. Images of our own programs have none.
const (
	// Whole is the vendor's own program.
	Whole Form = "whole"
	// Slice is a small main of ours around the vendor's own packages.
	Slice Form = "slice"
)

// Recipe is one entry of an image.yaml; the package's documentation shows
// every field.
type Recipe struct {
	// Ref is the image's name as manifests have it: host, path and tag.
	Ref string `json:"ref"`
	// Component, Version and Form say which vendor's component the image
	// holds. All three are empty for images of our own programs.
	Component string `json:"component,omitempty"`
	Version   string `json:"version,omitempty"`
	Form      Form   `json:"form,omitempty"`

	// Base is the Ref of the image below this one; empty means scratch.
	Base        string            `json:"base,omitempty"`
	Debian      *Debian           `json:"debian,omitempty"`
	Programs    []Program         `json:"programs,omitempty"`
	Files       []File            `json:"files,omitempty"`
	Directories []string          `json:"directories,omitempty"`
	Links       map[string]string `json:"links,omitempty"`
	Run         string            `json:"run,omitempty"`

	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	User       string            `json:"user,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	StopSignal string            `json:"stopSignal,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`

	folder string // absolute path of the folder that the recipe is in
}

// Debian asks for Debian packages. Their versions are those of the suite's
// current point release: Debian keeps no others in a suite.
type Debian struct {
	// Suite is the release's code name. It is set in an image without base
	// and only there; over a base the base's suite holds.
	Suite    string   `json:"suite,omitempty"`
	Packages []string `json:"packages,omitempty"`
}

// Program is a Go program, built without cgo.
type Program struct {
	Package string   `json:"package"`
	In      string   `json:"in,omitempty"`
	Path    string   `json:"path"`
	LDFlags string   `json:"ldflags,omitempty"`
	Tags    []string `json:"tags,omitempty"`
	Overlay *Overlay `json:"overlay,omitempty"`
}

// Overlay makes the compiler see a folder of a Go module, at the version that
// the program's go.mod asks for, inside a folder of this tree: what a release
// keeps in its own tree and nobody publishes as a module can then stand in
// for that module, without a copy of it here.
type Overlay struct {
	Module string `json:"module"`
	Source string `json:"source"`
	Path   string `json:"path"`
}

// File is a file, or a folder with all below it, taken from the recipe's
// folder or from a Go module.
type File struct {
	Module string `json:"module,omitempty"`
	In     string `json:"in,omitempty"`
	Source string `json:"source"`
	Path   string `json:"path"`
	Mode   string `json:"mode,omitempty"`
}

// permissions returns the mode that the recipe sets, 0 if it sets none.
func (f File) permissions() (fs.FileMode, error) {
	if f.Mode == "" {
		return 0, nil
	}
	mode, err := strconv.ParseUint(f.Mode, 8, 12)
	if err != nil || mode == 0 {
		return 0, fmt.Errorf("%q is no octal file mode such as \"0644\"", f.Mode)
	}
	return fs.FileMode(mode), nil
}

// needsRoot reports whether only root can build the image.
func (r *Recipe) needsRoot() bool { return r.Debian != nil || r.Run != "" }

// moduleFolder returns the folder of the go.mod that in names.
func (r *Recipe) moduleFolder(in string) string { return filepath.Join(r.folder, in) }

// readFolder reads the recipes of one folder. A folder without image.yaml
// has none: it holds a module that other folders' recipes name.
func readFolder(folder string) ([]*Recipe, error) {
	file := filepath.Join(folder, "image.yaml")
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading recipe: %w", err)
	}
	var content struct {
		Images []*Recipe `json:"images"`
	}
	if err := yaml.UnmarshalStrict(data, &content); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(content.Images) == 0 {
		return nil, fmt.Errorf("%s: images: expected at least one image", file)
	}
	for i, r := range content.Images {
		if r == nil {
			return nil, fmt.Errorf("%s: images[%d]: empty", file, i)
		}
		r.folder = folder
	}
	return content.Images, nil
}

// file returns the path of the image.yaml that the recipe is from.
func (r *Recipe) file() string { return filepath.Join(r.folder, "image.yaml") }

// wrong makes an error with the place it is at.
func (r *Recipe) wrong(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %s: %s", r.file(), r.Ref, field, fmt.Sprintf(format, args...))
}

// suite is a Debian code name: it becomes an argument of debootstrap.
var suite = regexp.MustCompile(`^[a-z]+$`)

// packageName is what Debian's policy allows (section 5.6.1), and with it
// nothing that a shell or apt-get would take for something else.
var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// validate returns all that is wrong with the recipe taken alone.
func (r *Recipe) validate() []error {
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, r.wrong(field, format, args...))
	}
	if tag, err := name.NewTag(r.Ref, name.StrictValidation); err != nil {
		wrong("ref", "%v", err)
	} else if !strings.Contains(tag.RegistryStr(), ".") || !strings.Contains(r.Ref, "/") {
		wrong("ref", "expected HOST/NAME:TAG with a host such as registry.k8s.io")
	}

	switch r.Form {
	case Whole, Slice:
		if r.Component == "" || r.Version == "" {
			wrong("form", "a %s image names its component and version", r.Form)
		}
	case "":
		if r.Component != "" || r.Version != "" {
			wrong("form", "expected %s or %s beside component and version", Whole, Slice)
		}
	default:
		wrong("form", "%q is neither %s nor %s", r.Form, Whole, Slice)
	}

	if r.Debian != nil {
		switch {
		case r.Base == "" && !suite.MatchString(r.Debian.Suite):
			wrong("debian.suite", "expected a code name such as bookworm, got %q", r.Debian.Suite)
		case r.Base != "" && r.Debian.Suite != "":
			wrong("debian.suite", "set in the base %s already", r.Base)
		case r.Base != "" && len(r.Debian.Packages) == 0:
			wrong("debian.packages", "expected at least one package")
		}
		for _, p := range r.Debian.Packages {
			if !packageName.MatchString(p) {
				wrong("debian.packages", "%q is no package name", p)
			}
		}
	}
	if r.Run != "" && r.Base == "" && r.Debian == nil {
		wrong("run", "needs a base or debian packages: scratch has no shell")
	}

	for i, p := range r.Programs {
		at := fmt.Sprintf("programs[%d]", i)
		if path.Base(p.Package) == "." || p.Package == "" || strings.HasPrefix(p.Package, "-") {
			wrong(at+".package", "expected a package path or ./FOLDER, got %q", p.Package)
		}
		if !path.IsAbs(p.Path) {
			wrong(at+".path", "expected an absolute path, got %q", p.Path)
		}
		if _, err := readGoMod(r.moduleFolder(p.In)); err != nil {
			wrong(at+".in", "%v", err)
		}
		if p.Overlay == nil {
			continue
		}
		if _, err := requiredVersion(r.moduleFolder(p.In), p.Overlay.Module); err != nil {
			wrong(at+".overlay.module", "%v", err)
		}
		if !filepath.IsLocal(p.Overlay.Source) {
			wrong(at+".overlay.source", "expected a path inside the module, got %q", p.Overlay.Source)
		}
		if _, err := readGoMod(filepath.Join(r.folder, p.Overlay.Path)); err != nil {
			wrong(at+".overlay.path", "expected a module's folder: %v", err)
		}
	}
	for i, f := range r.Files {
		at := fmt.Sprintf("files[%d]", i)
		if !path.IsAbs(f.Path) {
			wrong(at+".path", "expected an absolute path, got %q", f.Path)
		}
		if _, err := f.permissions(); err != nil {
			wrong(at+".mode", "%v", err)
		}
		switch {
		case !filepath.IsLocal(f.Source):
			wrong(at+".source", "expected a path inside the folder, got %q", f.Source)
		case f.Module != "":
			if _, err := requiredVersion(r.moduleFolder(f.In), f.Module); err != nil {
				wrong(at+".module", "%v", err)
			}
		case f.In != "":
			wrong(at+".in", "only beside module")
		default:
			if _, err := os.Stat(filepath.Join(r.folder, f.Source)); err != nil {
				wrong(at+".source", "%v", err)
			}
		}
	}
	for _, d := range r.Directories {
		if !path.IsAbs(d) {
			wrong("directories", "expected an absolute path, got %q", d)
		}
	}
	for from := range r.Links {
		if !path.IsAbs(from) {
			wrong("links", "expected an absolute path, got %q", from)
		}
	}
	return errs
}

// readGoMod reads the go.mod in a folder.
func readGoMod(folder string) (*modfile.File, error) {
	file := filepath.Join(folder, "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(file, data, nil)
}

// requiredVersion returns the module and version that the go.mod in a folder
// asks for.
func requiredVersion(folder, modulePath string) (module.Version, error) {
	mod, err := readGoMod(folder)
	if err != nil {
		return module.Version{}, err
	}
	i := slices.IndexFunc(mod.Require, func(q *modfile.Require) bool { return q.Mod.Path == modulePath })
	if i < 0 {
		return module.Version{}, fmt.Errorf("%s does not require %s", filepath.Join(folder, "go.mod"), modulePath)
	}
	return mod.Require[i].Mod, nil
}

// canonical returns the recipe in a form that is equal for equal recipes.
func (r *Recipe) canonical() ([]byte, error) { return json.Marshal(r) }
