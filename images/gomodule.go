package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"k8s.io/apimachinery/pkg/util/sets"
)

// goModule is what programs are built in: a module of this tree.
type goModule struct {
	folder string // the module's root
	// file is its go.mod: in the folder, or of a component's version elsewhere (-modfile). Its go.sum is beside it.
	file  string
	build *versionBuild // of a component; nil otherwise
}

// module returns the module that the recipe's field "in" names.
func (r *Recipe) module(dir string) goModule {
	if dir == "" && r.build != nil {
		return goModule{folder: r.folder, file: r.build.file, build: r.build}
	}
	folder := filepath.Join(r.folder, dir)
	return goModule{folder: folder, file: filepath.Join(folder, "go.mod")}
}

func (m goModule) sum() string { return strings.TrimSuffix(m.file, ".mod") + ".sum" }

func (m goModule) read() (*modfile.File, error) {
	data, err := os.ReadFile(m.file)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(m.file, data, nil)
}

func (m goModule) require(path string) (module.Version, error) {
	mod, err := m.read()
	if err != nil {
		return module.Version{}, err
	}
	var found module.Version
	for _, q := range mod.Require {
		if (path == q.Mod.Path || strings.HasPrefix(path, q.Mod.Path+"/")) && len(q.Mod.Path) > len(found.Path) {
			found = q.Mod
		}
	}
	if found.Path == "" {
		return found, fmt.Errorf("%s does not require %s", m.file, path)
	}
	return found, nil
}

// command prepares a go command in the module. A verb of two words is one string: "mod download".
func (m goModule) command(ctx context.Context, verb string, args ...string) *exec.Cmd {
	words := strings.Fields(verb)
	if m.file != filepath.Join(m.folder, "go.mod") {
		words = append(words, "-modfile="+m.file)
	}
	return goCommand(ctx, m.folder, slices.Concat(words, args)...)
}

// stale returns the import paths of the packages that go build would have to compile.
func (m goModule) stale(ctx context.Context, args []string) (sets.Set[string], error) {
	out, err := output(m.command(ctx, "list", append([]string{
		"-deps", "-trimpath", "-buildvcs=false", "-f={{if .Stale}}{{.ImportPath}}{{end}}",
	}, args...)...))
	if err != nil {
		return nil, fmt.Errorf("listing the packages to compile: %w", err)
	}
	return sets.New(strings.Fields(string(out))...), nil
}

func (m goModule) source(ctx context.Context, path string) (string, error) {
	v, err := m.require(path)
	if err != nil {
		return "", err
	}
	return downloaded(m.command(ctx, "mod download", "-json", v.String()), v)
}

// Download returns the folder in Go's module cache with the files of a module, and downloads it if need be. Go's
// checksum database verifies it. The error is a *NotPublishedError or an *UnreachableError if it is not available.
func Download(ctx context.Context, v module.Version) (string, error) {
	// Outside of every module, so that no go.mod is read.
	dir, err := downloaded(goCommand(ctx, os.TempDir(), "mod", "download", "-json", v.String()), v)
	return dir, unavailable(err, v)
}

// downloaded runs a go mod download -json of one module, and returns the module's folder.
func downloaded(cmd *exec.Cmd, v module.Version) (string, error) {
	// If it fails, its answer has the reason, and standard error does not.
	out, err := cmd.Output()
	var found struct{ Dir, Error string }
	if wrong := json.Unmarshal(out, &found); wrong != nil {
		return "", fmt.Errorf("downloading module %s: %w", v, cmp.Or(err, wrong))
	}
	if found.Error != "" {
		return "", fmt.Errorf("downloading module: %s", found.Error)
	}
	return found.Dir, err
}

// overlay returns the flag of go build and go list that shows them, below stagingFolder, the modules that a release
// keeps in its own tree and does not publish, and the module to which the flag belongs. If there is nothing to show
// there is no flag. modules has it show the release with another file for /proc/modules. It writes files to dir.
func (m goModule) overlay(ctx context.Context, dir string, modules KernelModules) (seen goModule, flags []string, err error) {
	var overlay struct{ Replace map[string]string }
	overlay.Replace = map[string]string{}
	if m.build != nil && m.build.vendor.Staging != nil {
		err = m.stage(ctx, dir, overlay.Replace)
	}
	if err == nil && modules.Path != "" {
		m, err = m.redirect(ctx, dir, modules, overlay.Replace)
	}
	if err != nil || len(overlay.Replace) == 0 {
		return m, nil, err
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return m, nil, err
	}
	file := filepath.Join(dir, "overlay.json")
	return m, []string{"-overlay=" + file}, os.WriteFile(file, text, 0o600)
}

func (m goModule) show(overlay map[string]string, path, folder string) (at string, err error) {
	at = filepath.Join(m.folder, stagingFolder, path)
	found, err := File{Path: at}.items(folder)
	if err != nil {
		return "", fmt.Errorf("taking %s from %s: %w", path, folder, err)
	}
	for _, it := range found {
		overlay[it.path] = it.source
	}
	return at, nil
}

func (m goModule) stage(ctx context.Context, dir string, overlay map[string]string) error {
	staging := m.build.vendor.Staging
	release, err := m.source(ctx, m.build.vendor.Module)
	if err != nil {
		return err
	}
	for i, path := range staging.Modules {
		at, err := m.show(overlay, path, filepath.Join(release, staging.Folder, path))
		if err != nil {
			return err
		}
		goMod := filepath.Join(dir, fmt.Sprintf("staging-%d.mod", i))
		if err := os.WriteFile(goMod, []byte("module "+path+"\n"), 0o644); err != nil {
			return err
		}
		overlay[filepath.Join(at, "go.mod")] = goMod
	}
	return nil
}

// redirect enters the release with another file in place of /proc/modules, and returns the module with a go.mod that
// takes the release from there: the go command refuses an overlay of its module cache. go.sum vouches for the release.
func (m goModule) redirect(ctx context.Context, dir string, modules KernelModules, overlay map[string]string) (goModule, error) {
	vendor := m.build.vendor.Module
	release, err := m.source(ctx, vendor)
	if err != nil {
		return m, err
	}
	at, err := m.show(overlay, vendor, release)
	if err != nil {
		return m, err
	}
	if overlay[filepath.Join(at, modules.Source)], err = modules.patch(filepath.Join(release, modules.Source), dir); err != nil {
		return m, err
	}
	mod, err := m.read()
	if err != nil {
		return m, err
	}
	if err := mod.AddReplace(vendor, "", stagingFolder+vendor, ""); err != nil {
		return m, err
	}
	text, err := mod.Format()
	if err != nil {
		return m, err
	}
	sums, err := os.ReadFile(m.sum())
	if err != nil {
		return m, err
	}
	m.file = filepath.Join(dir, "redirected.mod")
	return m, errors.Join(os.WriteFile(m.file, text, 0o600), os.WriteFile(m.sum(), sums, 0o600))
}

// goCommand keeps the user's own flags and workspace out: they would change what is built without changing its key.
func goCommand(ctx context.Context, folder string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(),
		"PWD="+folder, "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH, "GOFLAGS=-mod=readonly", "GOWORK=off")
	return cmd
}
