package images

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/mod/module"
)

// Form says how much of a vendor's component an image holds.
type Form string

// Forms of an image. Images of our own programs have none.
const (
	// Whole is the vendor's own program.
	Whole Form = "whole"
	// Slice is a small main of ours around the vendor's own packages.
	Slice Form = "slice"
)

// Recipe is one entry of an image.yaml; the package's documentation shows every field.
type Recipe struct {
	// Ref is the image's name as manifests have it: host, path and tag.
	Ref string `json:"ref"`
	// Component, Version and Form say which vendor's component the image holds; our own programs have none.
	Component string `json:"component,omitempty"`
	Version   string `json:"version,omitempty"`
	Form      Form   `json:"form,omitempty"`
	// Module is the Go module that holds the component. What the built programs say of it is compared with Version. A
	// component.yaml sets it by version; a component from Debian has none (see Debian.Versions).
	Module string `json:"module,omitempty"`

	// Base is the Ref of the image below this one; empty means scratch.
	Base     string    `json:"base,omitempty"`
	Debian   *Debian   `json:"debian,omitempty"`
	Programs []Program `json:"programs,omitempty"`
	// Licenses is the folder for the licences of the Go modules that programs are made of.
	Licenses    string            `json:"licenses,omitempty"`
	Files       []File            `json:"files,omitempty"`
	Directories []string          `json:"directories,omitempty"`
	Links       map[string]string `json:"links,omitempty"`
	Run         string            `json:"run,omitempty"`
	// KernelModules is set if programs end on a kernel without /proc/modules.
	KernelModules *KernelModules `json:"kernelModules,omitempty"`

	Entrypoint []string          `json:"entrypoint,omitempty"`
	Cmd        []string          `json:"cmd,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	User       string            `json:"user,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	StopSignal string            `json:"stopSignal,omitempty"`

	folder string        // absolute path of the folder that the recipe is in
	build  *versionBuild // of a recipe from a component.yaml
}

// Debian asks for packages, in the versions of the suite's current point release: Debian keeps no others in a suite.
type Debian struct {
	// Suite is the release's code name, set only in an image without base: others have the suite of their base.
	Suite    string   `json:"suite,omitempty"`
	Packages []string `json:"packages,omitempty"`
	// Updates takes the suite's security updates as well: for an image that is published.
	Updates bool `json:"updates,omitempty"`
	// Slim leaves of the base only packages and what they depend on: shell and package manager go if none needs them.
	Slim bool `json:"slim,omitempty"`
	// Versions are what packages must turn out to be, or begin with: 1.6.8, or 10.11, without epoch and revision.
	Versions map[string]string `json:"versions,omitempty"`
}

// Program is a Go program, built without cgo.
type Program struct {
	Package string   `json:"package"`
	In      string   `json:"in,omitempty"`
	Path    string   `json:"path"`
	LDFlags string   `json:"ldflags,omitempty"`
	Tags    []string `json:"tags,omitempty"`
}

func (p Program) local() bool { return strings.HasPrefix(p.Package, "./") }

// File is a file, or a folder with all below it, taken from the recipe's folder or from a Go module.
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

func (r *Recipe) needsRoot() bool { return r.Debian != nil || r.Run != "" }

func (r *Recipe) holds() module.Version {
	if r.build != nil {
		return r.build.vendor.at(r.build.version)
	}
	return module.Version{Path: r.Module, Version: "v" + r.Version}
}

// tests returns the module version that a program must turn out to be built from: the module that provides a vendor's
// package, or the component's module for a main package of ours. Programs of the project have none: it is zero.
func (r *Recipe) tests(p Program) (module.Version, error) {
	if p.local() {
		if r.Module == "" || p.In != "" {
			return module.Version{}, nil
		}
		return r.holds(), nil
	}
	if r.build != nil && p.In == "" {
		return r.build.vendor.at(r.build.version), nil
	}
	return r.module(p.In).require(p.Package)
}

// expand puts values into the recipe: its component's own, and for a program of another module that module's.
func (r *Recipe) expand(own *strings.Replacer) error {
	r.Ref, r.Run = own.Replace(r.Ref), own.Replace(r.Run)
	r.Programs, r.Files = slices.Clone(r.Programs), slices.Clone(r.Files)
	for i := range r.Programs {
		p := &r.Programs[i]
		p.Package = own.Replace(p.Package)
		values := own
		if strings.Contains(p.LDFlags, "${") && p.In != "" {
			tested, err := r.tests(*p)
			if err != nil {
				return r.wrong(fmt.Sprintf("programs[%d].in", i), "%v", err)
			}
			if tested.Path != r.Module {
				values = variables(tested, strings.TrimPrefix(tested.Version, "v"))
			}
		}
		p.LDFlags = values.Replace(p.LDFlags)
	}
	for i := range r.Files {
		r.Files[i].Module = own.Replace(r.Files[i].Module)
	}
	return nil
}

func readFolder(folder string) ([]*Recipe, error) {
	file := filepath.Join(folder, "image.yaml")
	var content struct {
		Images []*Recipe `json:"images"`
	}
	if there, err := readYAML(file, &content); err != nil || !there {
		return nil, err
	}
	if len(content.Images) == 0 {
		return nil, fmt.Errorf("%s: images: expected at least one image", file)
	}
	for i, r := range content.Images {
		if r == nil {
			return nil, fmt.Errorf("%s: images[%d]: empty", file, i)
		}
		r.folder = folder
		if err := r.expand(variables(r.holds(), r.Version)); err != nil {
			return nil, err
		}
	}
	return content.Images, nil
}

func (r *Recipe) file() string {
	if r.build != nil {
		return filepath.Join(r.folder, componentFile)
	}
	return filepath.Join(r.folder, "image.yaml")
}

func (r *Recipe) wrong(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %s: %s", r.file(), r.Ref, field, fmt.Sprintf(format, args...))
}

// validate finds what a build would not say, or only after minutes: a version that nothing proves, and missing files.
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
	proved := false // by a program or a package
	for i, p := range r.Programs {
		proved = r.validateProgram(fmt.Sprintf("programs[%d]", i), p, wrong) || proved
	}
	if r.Debian != nil {
		for _, version := range r.Debian.Versions {
			proved = proved || version == r.Version
		}
	}
	if r.Component != "" && !proved {
		wrong("version", "nothing proves it: expected module and one of its programs, or the version of a package under debian.versions")
	}
	for i, f := range r.Files {
		r.validateFile(fmt.Sprintf("files[%d]", i), f, wrong)
	}
	if k := r.KernelModules; k != nil && (r.build == nil || !filepath.IsLocal(k.Source) || !path.IsAbs(k.Path)) {
		wrong("kernelModules", "expected in a component.yaml, with a file of the vendor's module and an absolute path, got %q and %q", k.Source,
			k.Path)
	}
	if r.Licenses != "" && r.build != nil {
		wrong("licenses", "expected only in an image.yaml: a version of a component may have modules without a folder of their own")
	}
	return errs
}

// validateProgram reports whether the program proves the recipe's version.
func (r *Recipe) validateProgram(at string, p Program, wrong func(field, format string, args ...any)) (proved bool) {
	if _, err := r.module(p.In).read(); err != nil {
		wrong(at+".in", "%v", err)
		return false
	}
	tested, err := r.tests(p)
	if err != nil {
		wrong(at+".package", "%v", err)
	} else if tested.Path != "" && tested.Path == r.Module {
		proved = true
		if found, err := r.module(p.In).require(tested.Path); err != nil {
			wrong("version", "%v", err)
		} else if tested = r.holds(); found != tested {
			wrong("version", "expected %s to require %s, found %s", r.module(p.In).file, tested, found.Version)
		}
	}
	return proved
}

func (r *Recipe) validateFile(at string, f File, wrong func(field, format string, args ...any)) {
	if _, err := f.permissions(); err != nil {
		wrong(at+".mode", "%v", err)
	}
	switch {
	case !filepath.IsLocal(f.Source):
		wrong(at+".source", "expected a path inside the folder, got %q", f.Source)
	case f.Module != "":
		if _, err := r.module(f.In).require(f.Module); err != nil {
			wrong(at+".module", "%v", err)
		}
	default:
		if _, err := os.Stat(filepath.Join(r.folder, f.In, f.Source)); err != nil {
			wrong(at+".source", "%v", err)
		}
	}
}
