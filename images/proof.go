package images

import (
	"bufio"
	"cmp"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// otherThan says that a module or Debian package of an image is not of the version that the recipe says.
func (r *Recipe) otherThan(expected, where, found string) error {
	return fmt.Errorf("%s: %s: expected %s %s, found %s: no image is made of it", r.file(), r.Ref, expected, where, found)
}

// provePrograms compares what the Go linker has written into each program of a recipe, the versions of all modules in
// it, with what the recipe says. Link flags cannot change that; they do change what a program says of itself.
func (r *Recipe) provePrograms(files []string) error {
	for i, p := range r.Programs {
		expected, err := r.tests(p)
		if err != nil {
			return err
		}
		if expected.Path == "" {
			continue
		}
		info, err := buildinfo.ReadFile(files[i])
		if err != nil {
			return fmt.Errorf("reading the build information of %s: %w", p.Path, err)
		}
		found := "none"
		// The main package's module is not among the dependencies.
		for _, d := range append(info.Deps, &info.Main) {
			switch {
			case d.Path != expected.Path:
			case d.Replace != nil && d.Replace.Path != stagingFolder+d.Path: // what is staged is of this version
				found = d.Replace.Path + "@" + d.Replace.Version
			default:
				found = d.Version
			}
		}
		if found != expected.Version {
			return r.otherThan(expected.String(), "in "+p.Path, found)
		}
	}
	return nil
}

func (r *Recipe) provePackages(tree string) error {
	if len(r.Debian.Versions) == 0 {
		return nil
	}
	installed, err := debianVersions(filepath.Join(tree, "var/lib/dpkg/status"))
	if err != nil {
		return fmt.Errorf("reading which Debian packages are installed: %w", err)
	}
	var errs []error
	for name, expected := range r.Debian.Versions {
		found := installed[name]
		if upstream := upstreamVersion(found); upstream != expected && !strings.HasPrefix(upstream, expected+".") {
			errs = append(errs, r.otherThan(name+" "+expected, "among Debian's packages", cmp.Or(found, "none")))
		}
	}
	return errors.Join(errs...)
}

func debianVersions(file string) (map[string]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	versions := map[string]string{}
	var name string
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<20) // some descriptions are long lines
	for scanner.Scan() {
		switch key, value, _ := strings.Cut(scanner.Text(), ": "); key {
		case "Package":
			name = value
		case "Version":
			versions[name] = value
		}
	}
	return versions, scanner.Err()
}

// upstreamVersion is a Debian version without epoch and revision (deb-version(7)): 10.11.14 of 1:10.11.14-0+deb12u2.
func upstreamVersion(version string) string {
	if _, rest, ok := strings.Cut(version, ":"); ok {
		version = rest
	}
	if i := strings.LastIndexByte(version, '-'); i >= 0 {
		version = version[:i]
	}
	return version
}
