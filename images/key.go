package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// generation is part of every key. It goes up when the factory itself makes something else of the same inputs.
const generation = "1"

func (c *Catalogue) keys(ctx context.Context, refs []string) (map[string]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := map[string]string{}
	for _, ref := range refs {
		if _, done := c.keyByRef[ref]; !done {
			r, _ := c.Recipe(ref)
			if err := c.derive(ctx, r); err != nil {
				return nil, err
			}
			key, err := c.key(ctx, r, c.keyByRef[r.Base])
			if err != nil {
				return nil, fmt.Errorf("hashing the inputs of %s: %w", ref, err)
			}
			c.keyByRef[ref] = key
		}
		keys[ref] = c.keyByRef[ref]
	}
	return keys, nil
}

// derive makes sure that the go.mod of a recipe is there. The catalogue has the go.mod of its
// own versions; another version's is derived once. The caller holds c.mu.
func (c *Catalogue) derive(ctx context.Context, r *Recipe) error {
	if r.build == nil {
		return nil
	}
	if err := r.build.prepare(ctx, c.cache.modules()); err != nil {
		return fmt.Errorf("deriving the go.mod of %s: %w", r.Ref, err)
	}
	return nil
}

func (c *Catalogue) key(ctx context.Context, r *Recipe, baseKey string) (string, error) {
	h := sha256.New()
	recipe, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "generation %s\narch %s\nrecipe %s\nbase %s\n", generation, runtime.GOARCH, recipe, baseKey)
	if r.Debian != nil {
		fmt.Fprintf(h, "cleaned by %s\n", cleanDebian)
	}
	if r.Debian != nil && r.Debian.Slim {
		fmt.Fprintf(h, "selected by %s\n", selectPackages(r.Debian.Packages))
	}
	if len(r.Programs) > 0 {
		version, err := output(goCommand(ctx, c.root, "env", "GOVERSION"))
		if err != nil {
			return "", fmt.Errorf("asking go for its version: %w", err)
		}
		fmt.Fprintf(h, "go %s\n", bytes.TrimSpace(version))
	}
	for _, p := range r.Programs {
		if m := r.module(p.In); m.folder == c.root {
			err = hashPackage(ctx, h, m, p)
		} else {
			err = hashModule(h, m, p)
		}
		if err != nil {
			return "", err
		}
	}
	if k := r.KernelModules.replaces(); k.Path != "" {
		text, err := builtIn()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "modules %q\n", text)
	}
	for _, f := range r.Files {
		if f.Module == "" {
			err = hashTree(h, filepath.Join(r.folder, f.In, f.Source), nil)
		} else {
			err = hashRequirement(h, r.module(f.In), f.Module)
		}
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func hashModule(h hash.Hash, m goModule, p Program) error {
	for _, file := range []string{m.file, m.sum()} {
		if err := hashFile(h, file, filepath.Base(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // a module without requirements has no go.sum
		}
	}
	if !p.local() {
		return nil
	}
	return hashTree(h, m.folder, func(path string, entry fs.DirEntry) bool {
		if entry.IsDir() {
			return path == filepath.Join(m.folder, "versions")
		}
		switch filepath.Ext(path) {
		case ".mod", ".sum", ".yaml":
			return true
		}
		return strings.HasSuffix(path, "_test.go")
	})
}

// hashPackage hashes only the packages that a program of the root module imports: other work rebuilds no image.
func hashPackage(ctx context.Context, h hash.Hash, m goModule, p Program) error {
	out, err := output(m.command(ctx, "list", "-deps", "-trimpath", "-tags="+strings.Join(p.Tags, ","),
		"-json=ImportPath,Dir,Standard,Module,GoFiles,SFiles,EmbedFiles", p.Package))
	if err != nil {
		return err
	}
	sums, err := m.checksums()
	if err != nil {
		return err
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct {
			ImportPath, Dir             string
			Standard                    bool
			Module                      *struct{ Path, Version string }
			GoFiles, SFiles, EmbedFiles []string
		}
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading go list's answer on %s: %w", p.Package, err)
		}
		switch {
		case pkg.Standard: // the Go version covers it
		case pkg.Module != nil && pkg.Module.Version != "":
			id := pkg.Module.Path + " " + pkg.Module.Version
			fmt.Fprintf(h, "package %s of %s %s\n", pkg.ImportPath, id, sums[id])
		default:
			fmt.Fprintf(h, "package %s\n", pkg.ImportPath)
			for _, name := range slices.Concat(pkg.GoFiles, pkg.SFiles, pkg.EmbedFiles) {
				if err := hashFile(h, filepath.Join(pkg.Dir, name), name); err != nil {
					return err
				}
			}
		}
	}
}

func hashRequirement(h hash.Hash, m goModule, modulePath string) error {
	mod, err := m.require(modulePath)
	if err != nil {
		return err
	}
	sums, err := m.checksums()
	if err != nil {
		return err
	}
	id := mod.Path + " " + mod.Version
	_, err = fmt.Fprintf(h, "module %s %s\n", id, sums[id])
	return err
}

// checksums returns the checksums in the module's go.sum by "path version".
func (m goModule) checksums() (map[string]string, error) {
	data, err := os.ReadFile(m.sum())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 {
			sums[fields[0]+" "+fields[1]] = fields[2]
		}
	}
	return sums, nil
}

// hashTree hashes a file, or a folder's files with their names, except for paths that skip accepts.
func hashTree(h hash.Hash, root string, skip func(path string, entry fs.DirEntry) bool) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if skip != nil && skip(path, entry) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if entry.IsDir() {
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		return hashFile(h, path, name)
	})
}

func hashFile(h hash.Hash, path, name string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "file %q %t %d\n", name, info.Mode()&0o111 != 0, info.Size())
	_, err = io.Copy(h, f)
	return err
}
