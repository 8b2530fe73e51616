package bump

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/status"
)

// Repository is a git repository at its merge base with a branch, and in its work tree.
type Repository struct {
	dir, base     string
	before, after *tree
	patches       []patch
}

// patch is what changes in a file, with its names before and after.
type patch struct {
	oldName, name string
	hunks         []string
}

// tree are the files of a commit, or of the work tree, and the parsed documents, which both trees share.
type tree struct {
	texts  map[string]string
	parsed map[string][]*document
	origin string // the address of the repository; empty if it is not known
}

// Open reads the repository of a folder. The error is one sentence.
func Open(ctx context.Context, dir, base string) (*Repository, error) {
	r := &Repository{dir: dir}
	top, err := r.git(ctx, "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, status.Input("%s is no work tree of a git repository: %w", dir, err)
	}
	r.dir = strings.TrimSuffix(top, "\n")
	commit, err := r.git(ctx, "merge-base", "--end-of-options", base, "HEAD")
	if err != nil {
		return nil, status.Input("--base: %q and HEAD have no commit in common here: %w: expected a branch in a clone with its whole history "+
			"(git fetch --unshallow; fetch-depth: 0 of actions/checkout)", base, err)
	}
	commit = strings.TrimSpace(commit)
	r.base = fmt.Sprintf("%s (%.9s)", base, commit)
	texts, err := r.workTree(ctx)
	if err != nil {
		return nil, err
	}
	diff := []string{"diff", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules", "--find-renames"}
	names, err := r.git(ctx, append(diff, "--raw", "-z", commit)...)
	if err != nil {
		return nil, err
	}
	// A file whose type changes has two patches: it is removed and added.
	text, err := r.git(ctx, append(diff, "--text", "--unified=12", "--diff-filter=t", commit)...)
	patches := strings.Split("\n"+text, "\ndiff --git ")[1:]
	before := maps.Clone(texts)
	for fields := strings.Split(names, "\x00"); len(fields) > 1 && err == nil; {
		modes, p := fields[0], patch{oldName: fields[1], name: fields[1]}
		fields = fields[2:]
		kind := modes[strings.LastIndexByte(modes, ' ')+1:]
		if kind[0] == 'R' {
			p.name, fields = fields[0], fields[1:]
		}
		delete(before, p.name)
		if kind[0] != 'T' && len(patches) > 0 {
			p.hunks, patches = strings.Split(patches[0], "\n@@ ")[1:], patches[1:]
		}
		if prose.MatchString(p.name) && prose.MatchString(p.oldName) {
			continue
		}
		r.patches = append(r.patches, p)
		if strings.HasPrefix(modes, ":100") { // a file, and no link
			before[p.oldName], err = r.git(ctx, "show", "--no-textconv", commit+":"+p.oldName)
		}
	}
	origin, _ := r.git(ctx, "config", "remote.origin.url") // there may be none
	r.before = &tree{texts: before, parsed: map[string][]*document{}, origin: strings.TrimSpace(origin)}
	r.after = &tree{texts: texts, parsed: r.before.parsed, origin: r.before.origin}
	return r, err
}

// git runs git in the repository. The error is the first line of what it says.
func (r *Repository) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", r.dir}, args...)...)
	var said bytes.Buffer
	cmd.Env, cmd.Stderr = append(os.Environ(), "GIT_LFS_SKIP_SMUDGE=1"), &said
	out, err := cmd.Output()
	if line, _, _ := strings.Cut(strings.TrimSpace(said.String()), "\n"); err != nil && line != "" {
		err = errors.New(strings.TrimPrefix(line, "fatal: "))
	}
	return string(out), err
}

// largest is the size of a file above which it is not read: a rendered chart with all its types has 2 MB.
const largest = 8 << 20

// workTree has the texts of the files that git tracks.
func (r *Repository) workTree(ctx context.Context) (map[string]string, error) {
	texts := map[string]string{}
	listed, err := r.git(ctx, "ls-files", "-z")
	for name := range strings.SplitSeq(listed, "\x00") {
		file := filepath.Join(r.dir, name)
		info, gone := os.Lstat(file)
		if gone != nil || !info.Mode().IsRegular() || info.Size() > largest || prose.MatchString(name) {
			continue // also a link, and a submodule
		}
		text, broken := os.ReadFile(file)
		texts[name], err = string(text), errors.Join(err, broken)
	}
	return texts, err
}

// naming are the documents of all files that have one of some words in their names or texts, in any case.
func (t *tree) naming(words ...string) (all []*document) {
	for _, file := range slices.Sorted(maps.Keys(t.texts)) {
		if !structured.MatchString(file) {
			continue
		}
		text := strings.ToLower(file + "\n" + t.texts[file])
		if slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, strings.ToLower(word)) }) {
			all = append(all, t.documents(file)...)
		}
	}
	return all
}

// documents are the documents of a file; none if it is no YAML: then it is compared as text.
func (t *tree) documents(file string) []*document {
	key := file + "\n" + t.texts[file]
	if _, found := t.parsed[key]; !found {
		roots, _ := placeholder.Values{}.Documents([]byte(t.texts[file]))
		t.parsed[key] = each.Of(roots, func(root map[string]any) *document { return &document{file, root} })
	}
	return t.parsed[key]
}

// like are the documents, or the places in documents, with a kind, namespace and name.
func like[T interface{ at(path string) string }](all []T, kind, namespace, name string) []T {
	return each.Where(all, func(d T) bool {
		other := d.at("metadata.namespace")
		return d.at("kind") == kind && d.at("metadata.name") == name && (namespace == "" || other == "" || other == namespace)
	})
}

// nearest are the documents, or places, that have the most folders in common with a document.
func nearest[T interface{ common(other *document) int }](all []T, to *document) []T {
	closest := 0
	for _, d := range all {
		closest = max(closest, d.common(to))
	}
	return each.Where(all, func(d T) bool { return d.common(to) == closest })
}

// common is how many parts of their paths two documents have in common.
func (d *document) common(other *document) (n int) {
	a, b := strings.Split(d.file, "/"), strings.Split(other.file, "/")
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// object is the document with a kind and name that is nearest to another document; nil unless one alone is near.
func (t *tree) object(kind, name string, referrer *document) *document {
	found := nearest(like(t.naming(name), kind, referrer.at("metadata.namespace"), name), referrer)
	apart := func(d *document) bool {
		return d.common(referrer) == 0 && strings.Contains(d.file, "/") && strings.Contains(referrer.file, "/")
	}
	if len(found) != 1 || apart(found[0]) {
		return nil
	}
	return found[0]
}
