package bump

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology/status"
)

// Repository is a git repository before and after a change: as it is at the merge base with a branch, and in its work
// tree.
type Repository struct {
	dir, base     string
	before, after *tree
	patches       []patch
}

// patch is what changes in a file. One of its names is nowhere if it is new or gone.
type patch struct{ was, is, text string }

const nowhere = "/dev/null"

// tree are the files of a commit, or of the work tree, and the documents in those that were asked for.
type tree struct {
	files  fs.FS
	texts  map[string]string
	parsed map[string][]*document
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
	after, err := r.workTree(ctx)
	if err != nil {
		return nil, err
	}
	diff, err := r.git(ctx, "-c", "core.quotePath=false", "diff", "--no-ext-diff", "--no-textconv", "--no-color", "--unified=3",
		"--ignore-submodules", "--src-prefix=a/", "--dst-prefix=b/", "--find-renames", commit)
	before := maps.Clone(after)
	for _, text := range strings.Split("\n"+diff, "\ndiff --git ")[1:] {
		p := patch{text: text}
		for _, name := range patchNames.FindAllStringSubmatch(text, 2) {
			p.was, p.is = p.is, name[1]
		}
		delete(before, p.is)
		r.patches = append(r.patches, p)
	}
	for _, p := range r.patches {
		if p.was != "" && p.was != nowhere && !prose.MatchString(p.was) && err == nil {
			before[p.was], err = r.git(ctx, "show", "--no-textconv", commit+":"+p.was)
		}
	}
	r.before, r.after = newTree(before), newTree(after)
	return r, err
}

// patchNames finds the names of a file in its patch, the earlier one first.
var patchNames = regexp.MustCompile(`(?m)^(?:--- (?:a/)?|\+\+\+ (?:b/)?|rename from |rename to )([^\t\n]+)`)

// newTree has the files in an archive, in which no path and no link leads out of the repository.
func newTree(texts map[string]string) *tree {
	var archive bytes.Buffer // to which writing does not fail
	w := zip.NewWriter(&archive)
	for name, text := range texts {
		file, _ := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		_, _ = file.Write([]byte(text))
	}
	_ = w.Close()
	files, _ := zip.NewReader(bytes.NewReader(archive.Bytes()), int64(archive.Len()))
	return &tree{files: files, texts: texts, parsed: map[string][]*document{}}
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

// naming are the documents of the files whose names or texts a pattern matches.
func (t *tree) naming(pattern *regexp.Regexp) (all []*document) {
	for _, file := range slices.Sorted(maps.Keys(t.texts)) {
		if !structured.MatchString(file) || !pattern.MatchString(file) && !pattern.MatchString(t.texts[file]) {
			continue
		}
		if _, known := t.parsed[file]; !known {
			roots, _ := placeholder.Values{}.Documents([]byte(t.texts[file])) // what is no YAML is compared as text
			t.parsed[file] = []*document{}
			for _, root := range roots {
				t.parsed[file] = append(t.parsed[file], &document{file, root})
			}
		}
		all = append(all, t.parsed[file]...)
	}
	return all
}

// object is the document of a kind and name that is nearest to another one; nil if there is none.
func (t *tree) object(kind, namespace, name string, of *document) (nearest *document) {
	closest := -1
	for _, d := range t.naming(regexp.MustCompile(regexp.QuoteMeta(name))) {
		other := d.at("metadata.namespace")
		if d.at("kind") != kind || d.at("metadata.name") != name || namespace != "" && other != "" && other != namespace {
			continue
		}
		near := 0
		for near < min(len(d.file), len(of.file)) && d.file[near] == of.file[near] {
			near++
		}
		if near > closest {
			nearest, closest = d, near
		}
	}
	return nearest
}
