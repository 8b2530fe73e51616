// Command readme renders the parts of the tree's Markdown files that come from the code: the incidents from their
// records, the components from the recipes of images, the figures from their file, and transcripts from the golden
// files that the tests of the commands compare their output with. A part is a block between two comments:
//
//	<!-- rendered by go generate ./cmd/readme: figures -->
//	<!-- end of figures -->
//
// Everything between them is replaced; the rest of the file stays as it is. The names
// of the blocks are listed at func render. A test fails while a block is stale.
//
// With bench as its first argument it first takes the figures from stored runs, whose folders are further arguments,
// and compares them with their budgets. It must be run in the root of the repository.
//
// Exit status: 1 if a figure is not within its budget.
package main

//go:generate go run . ../..

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	var err error
	switch {
	case len(os.Args) > 2 && os.Args[1] == "bench":
		err = errors.Join(bench(os.Args[2:]), renew("."))
	case len(os.Args) == 2:
		err = renew(os.Args[1])
	default:
		fmt.Fprintln(os.Stderr, "usage: readme FOLDER, the root of the tree; or readme bench REPORTS...")
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "readme: "+err.Error())
		os.Exit(1)
	}
}

func renew(root string) error {
	paths, err := documents(root)
	if err != nil {
		return err
	}
	for _, path := range paths {
		before, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading a document: %w", err)
		}
		rendered, err := replace(string(before), func(name string) (string, error) { return render(root, name) })
		if err != nil {
			return fmt.Errorf("rendering %s: %w", path, err)
		}
		if rendered == string(before) {
			continue
		}
		if err := os.WriteFile(path, []byte(rendered), 0o644); err != nil {
			return fmt.Errorf("writing a document: %w", err)
		}
	}
	return nil
}

// documents lists the Markdown files under root that git tracks, without golden files.
func documents(root string) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "reports", "testdata"}, entry.Name()):
			return fs.SkipDir
		case !entry.IsDir() && filepath.Ext(path) == ".md":
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking for Markdown files: %w", err)
	}
	return paths, nil
}

var begins = regexp.MustCompile(`(?m)^<!-- rendered by go generate ./cmd/readme: (.+) -->\n`)

// replace renders each block of a text again. The error names the blocks that have no end.
func replace(text string, render func(name string) (string, error)) (string, error) {
	var b strings.Builder
	var errs []error
	for {
		at := begins.FindStringSubmatchIndex(text)
		if at == nil {
			b.WriteString(text)
			return b.String(), errors.Join(errs...)
		}
		name := text[at[2]:at[3]]
		end := "<!-- end of " + name + " -->\n"
		_, rest, ends := strings.Cut(text[at[1]:], end)
		if !ends {
			return "", errors.Join(append(errs, fmt.Errorf("block %q has no end: expected the line %q", name, end))...)
		}
		content, err := render(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("block %q: %w", name, err))
		}
		b.WriteString(text[:at[1]] + "\n" + content + "\n" + end)
		text = rest
	}
}
