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
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// generation is part of every key. It goes up when the factory itself makes
// something else of the same inputs.
const generation = "1"

// keys returns the key of each image; refs holds bases before those built on
// them.
func (c *Catalogue) keys(ctx context.Context, refs []string) (map[string]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := map[string]string{}
	for _, ref := range refs {
		if _, done := c.known[ref]; !done {
			r := c.recipes[ref]
			key, err := c.key(ctx, r, c.known[r.Base])
			if err != nil {
				return nil, fmt.Errorf("hashing the inputs of %s: %w", ref, err)
			}
			c.known[ref] = key
		}
		keys[ref] = c.known[ref]
	}
	return keys, nil
}

// key hashes all that goes into one image.
func (c *Catalogue) key(ctx context.Context, r *Recipe, baseKey string) (string, error) {
	h := sha256.New()
	recipe, err := r.canonical()
	if err != nil {
		return "", err
	}
	fmt.Fprintf(h, "generation %s\narch %s\nrecipe %s\nbase %s\n", generation, runtime.GOARCH, recipe, baseKey)
	if len(r.Programs) > 0 {
		version, err := goVersion(ctx, c.root)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "go %s\n", version)
	}
	for _, p := range r.Programs {
		folder := r.moduleFolder(p.In)
		if folder == c.root {
			err = hashPackage(ctx, h, folder, p)
		} else {
			err = hashModule(h, folder)
		}
		if err != nil {
			return "", err
		}
	}
	for _, f := range r.Files {
		if f.Module == "" {
			err = hashTree(h, filepath.Join(r.folder, f.Source), nil)
		} else {
			err = hashRequirement(h, r.moduleFolder(f.In), f.Module)
		}
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hashModule hashes a module's folder whole: its go.mod, go.sum and sources,
// and the local modules that it replaces others by.
func hashModule(h hash.Hash, folder string) error {
	mod, err := readGoMod(folder)
	if err != nil {
		return err
	}
	skip := func(path string, entry fs.DirEntry) bool {
		if entry.IsDir() {
			_, err := os.Stat(filepath.Join(path, "go.mod"))
			return path != folder && err == nil // a module of its own
		}
		return entry.Name() == "image.yaml" || strings.HasSuffix(entry.Name(), "_test.go")
	}
	if err := hashTree(h, folder, skip); err != nil {
		return err
	}
	for _, replace := range mod.Replace {
		if modfile.IsDirectoryPath(replace.New.Path) {
			if err := hashModule(h, filepath.Join(folder, replace.New.Path)); err != nil {
				return err
			}
		}
	}
	return nil
}

// hashPackage hashes what a program of the root module is made of: only the
// packages that it imports, so that work on the rest of the tree rebuilds no
// image.
func hashPackage(ctx context.Context, h hash.Hash, folder string, p Program) error {
	args := []string{
		"list", "-deps", "-trimpath", "-tags=" + strings.Join(p.Tags, ","),
		"-json=ImportPath,Dir,Standard,Module,GoFiles,SFiles,EmbedFiles", p.Package,
	}
	cmd := goCommand(ctx, folder, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	sums, err := readGoSum(folder)
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
		case pkg.Standard: // the Go version stands for it
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

// hashRequirement hashes a module's version and checksum as go.mod and go.sum
// in folder have them.
func hashRequirement(h hash.Hash, folder, modulePath string) error {
	mod, err := requiredVersion(folder, modulePath)
	if err != nil {
		return err
	}
	sums, err := readGoSum(folder)
	if err != nil {
		return err
	}
	id := mod.Path + " " + mod.Version
	_, err = fmt.Fprintf(h, "module %s %s\n", id, sums[id])
	return err
}

// readGoSum returns the checksums in a folder's go.sum by "path version".
func readGoSum(folder string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(folder, "go.sum"))
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

// hashTree hashes a file, or a folder's files with their names. What skip
// reports is left out.
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

// hashFile hashes one file's name, whether it is executable, and its content.
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

// goCommand prepares the go command in a module's folder. The user's own
// flags and workspace are kept out: they would change what is built without
// changing its key.
func goCommand(ctx context.Context, folder string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(),
		"PWD="+folder, "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+runtime.GOARCH, "GOFLAGS=-mod=readonly", "GOWORK=off")
	return cmd
}

// goVersion asks the go command in a folder for its version.
func goVersion(ctx context.Context, folder string) (string, error) {
	out, err := goCommand(ctx, folder, "env", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("asking go for its version: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
