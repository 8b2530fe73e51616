package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

type versionBuild struct {
	component *component
	vendor    vendorModule
	version   string
	// file is the version's go.mod: committed for versions of the catalogue, for others in the cache (prepare).
	file string
}

// derive makes the go.mod of a version from the vendor's own. What it requires and replaces stays word for word, but
// for what component.yaml raises and replaces; so the vendor's code is compiled with the libraries that the vendor
// has chosen. A comment at each raised or replaced module says what it is for.
func (b *versionBuild) derive(vendorGoMod []byte) ([]byte, error) {
	v := b.vendor.at(b.version)
	mod, err := modfile.Parse(v.String()+"/go.mod", vendorGoMod, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the vendor's go.mod: %w", err)
	}
	if b.vendor.Staging != nil {
		published := variables(v, b.version).Replace(b.vendor.Staging.Published)
		for _, r := range slices.Clone(mod.Replace) {
			if published != "" && strings.HasPrefix(r.New.Path, "./"+b.vendor.Staging.Folder+"/") {
				err = errors.Join(err, mod.AddReplace(r.Old.Path, r.Old.Version, r.Old.Path, published))
			}
		}
	}
	vendors := chosen(mod)
	ours := "github.com/relapse-dev/relapse/images/" + filepath.Base(b.component.folder)
	err = errors.Join(err, mod.AddModuleStmt(ours))
	if language := cmp.Or(b.vendor.Go, b.component.Go); language != vendorGo {
		if mod.Go != nil && version.Compare("go"+mod.Go.Version, "go"+language) > 0 {
			language = mod.Go.Version // which its main module cannot be below
		}
		err = errors.Join(err, mod.AddGoStmt(language))
	}
	mod.DropToolchainStmt()
	source := cmp.Or(b.vendor.Requirements, "the go.mod of "+v.String())
	mod.Module.Syntax.Before = []modfile.Comment{
		{Token: "// Derived from " + source + " and " + componentFile + "."},
		{Token: "// Do not edit: go test ./images -run Derivation -update writes it."},
	}
	for _, path := range slices.Sorted(maps.Keys(b.vendor.AtLeast)) {
		lowest := b.vendor.AtLeast[path]
		for _, q := range mod.Require {
			if q.Mod.Path == path && semver.Compare(q.Mod.Version, lowest) < 0 {
				err = errors.Join(err, mod.AddRequire(path, lowest))
			}
		}
	}
	err = errors.Join(err, mod.AddRequire(v.Path, v.Version))
	for _, path := range b.vendor.Unreplaced {
		err = errors.Join(err, mod.DropReplace(path, ""))
	}
	for _, path := range slices.Sorted(maps.Keys(b.vendor.Replace)) {
		newPath, newVersion, _ := strings.Cut(b.vendor.Replace[path], " ")
		err = errors.Join(err, mod.AddReplace(path, "", newPath, newVersion))
	}
	if b.vendor.Staging != nil {
		for _, path := range b.vendor.Staging.Modules {
			err = errors.Join(err, mod.AddRequire(path, "v0.0.0"), mod.AddReplace(path, "", stagingFolder+path, ""))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("deriving go.mod from the go.mod of %s: %w", v, err)
	}
	for _, r := range mod.Replace {
		if modfile.IsDirectoryPath(r.New.Path) && !strings.HasPrefix(r.New.Path, stagingFolder) {
			return nil, fmt.Errorf("%s: modules: %s replaces %s by its own folder %s: expected another version under replace",
				filepath.Join(b.component.folder, componentFile), v, r.Old.Path, r.New.Path)
		}
	}
	mod.Cleanup()
	b.vendor.noteSubstitutes(mod, vendors)
	return mod.Format()
}

// stagingFolder is where modules of a release's own tree appear to the go command, by an overlay: not on the disk.
const stagingFolder = "./staging/"

func (b *versionBuild) vendorGoMod(ctx context.Context) ([]byte, error) {
	if b.vendor.Requirements != "" {
		return os.ReadFile(filepath.Join(b.component.folder, b.vendor.Requirements))
	}
	v := b.vendor.at(b.version)
	// Outside of every module, so that no other go.mod is read.
	cmd := goCommand(ctx, os.TempDir(), "list", "-mod=mod", "-m", "-json", v.String())
	// The build compares with go.sum or asks the checksum database.
	cmd.Env = append(cmd.Env, "GONOSUMDB="+v.Path)
	out, err := output(cmd)
	if err != nil {
		return nil, fmt.Errorf("the go.mod of %s is not available: %w", v, err)
	}
	var found struct{ GoMod, Error string }
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("reading go's answer on %s: %w", v, err)
	}
	if found.GoMod == "" {
		// The proxy knows of the version and does not serve its go.mod: go mod download says so, and go list does not.
		cmd := goCommand(ctx, os.TempDir(), "mod", "download", "-json", v.String())
		cmd.Env = append(cmd.Env, "GONOSUMDB="+v.Path)
		out, err := cmd.Output() // it fails, and its answer says why
		if json.Unmarshal(out, &found) != nil || found.Error == "" {
			return nil, fmt.Errorf("the go.mod of %s is not available: go list names none: %w", v, err)
		}
		return nil, fmt.Errorf("the go.mod of %s is not available: %s", v, found.Error)
	}
	return os.ReadFile(found.GoMod)
}

// settle writes the go.mod that is derived to VERSION.mod in a folder, and VERSION.sum beside it;
// checksums that are there stay. Go adds what it needs: indirect requirements, which older releases
// do not list, and the checksums of what the packages import.
func (b *versionBuild) settle(ctx context.Context, dir string, derived []byte) error {
	m := goModule{folder: b.component.folder, file: filepath.Join(dir, b.version+".mod"), build: b}
	sum, err := os.OpenFile(m.sum(), os.O_CREATE, 0o644) // empty where there is none
	if err == nil {
		err = sum.Close()
	}
	if err := errors.Join(err, os.WriteFile(m.file, derived, 0o644)); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "relapse-overlay-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	_, overlay, err := m.overlay(ctx, scratch, KernelModules{})
	if err != nil {
		return err
	}
	for _, p := range b.programs() {
		for _, arch := range []string{"amd64", "arm64"} { // checksums serve machines of both
			flags := append([]string{"-mod=mod", "-deps", "-tags=" + strings.Join(p.Tags, ",")}, overlay...)
			cmd := m.command(ctx, "list", append(flags, p.Package)...)
			unlisted := append(b.vendor.Unlisted[:len(b.vendor.Unlisted):len(b.vendor.Unlisted)], os.Getenv("GONOSUMDB"))
			cmd.Env = append(cmd.Env, "GONOSUMDB="+strings.Join(unlisted, ","), "GOARCH="+arch)
			if _, err := output(cmd); err != nil {
				return fmt.Errorf("resolving what %s requires: %w", b.vendor.at(b.version), err)
			}
		}
	}
	return nil
}

// programs is what is built of a version: in the catalogue, or else in all images whose range includes it.
func (b *versionBuild) programs() []Program {
	var all []Program
	catalogued := slices.Contains(b.component.catalogued(), b.version)
	for _, image := range b.component.Images {
		if catalogued && !slices.Contains(image.Versions, b.version) {
			continue
		}
		r, err := b.component.recipe(image, b.version)
		if err != nil {
			continue // not in its range
		}
		for _, p := range r.Programs {
			if p.In == "" && !slices.ContainsFunc(all, func(q Program) bool { return q.Package == p.Package }) {
				all = append(all, p)
			}
		}
	}
	return all
}

// prepare makes the go.mod and go.sum of a version that the catalogue does not have, and keeps them
// in a folder: they belong to the images that are built with them. The folder's name has the hash
// of the derivation in it, so that a change of component.yaml makes them again.
func (b *versionBuild) prepare(ctx context.Context, folder string) error {
	if b.file != "" {
		return nil
	}
	v := b.vendor.at(b.version)
	vendor, err := b.vendorGoMod(ctx)
	if err != nil {
		return unavailable(err, v)
	}
	derived, err := b.derive(vendor)
	if err != nil {
		return err
	}
	hash := sha256.Sum256(derived)
	dir := filepath.Join(folder, fmt.Sprintf("%s-%s-%s", filepath.Base(b.component.folder), b.version, hex.EncodeToString(hash[:6])))
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		making, err := os.MkdirTemp(folder, "making-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(making)
		if err := b.settle(ctx, making, derived); err != nil {
			return unavailable(err, v)
		}
		// Another process may have made the same in the meantime.
		if err := os.Rename(making, dir); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	b.file = filepath.Join(dir, b.version+".mod")
	return nil
}

// CommandError is the failure of a command.
type CommandError struct {
	Args   []string
	Stderr string // what it wrote to standard error
	Err    error
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: %v: %s", strings.Join(e.Args, " "), e.Err, strings.TrimSpace(e.Stderr))
}

func (e *CommandError) Unwrap() error { return e.Err }

// Reason is the first line that the command wrote to standard error, without the name of the go command.
func (e *CommandError) Reason() string {
	line, _, _ := strings.Cut(strings.TrimSpace(e.Stderr), "\n")
	return strings.TrimPrefix(line, "go: ")
}

func output(cmd *exec.Cmd) ([]byte, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, &CommandError{Args: cmd.Args, Stderr: stderr.String(), Err: err}
	}
	return out, nil
}
