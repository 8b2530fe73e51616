// Command readme renders the tables of README.md that say what the code knows
// better: the incidents from their records, the components from the recipes of
// images, the figures from what cmd/bench has measured. Each stands between two comments:
//
//	<!-- incidents: rendered by go generate ./cmd/readme -->
//	<!-- end of incidents -->
//
// Everything between them is replaced; the rest of the file is left as it is.
// A test of this package fails while a table says something else.
package main

//go:generate go run . ../..

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: readme FOLDER, which has README.md in it")
		os.Exit(2)
	}
	if err := renew(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "readme: "+err.Error())
		os.Exit(1)
	}
}

// renew writes root's README.md with the tables as they should be.
func renew(root string) error {
	path := filepath.Join(root, "README.md")
	before, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the README: %w", err)
	}
	rendered, err := tables(root)
	if err != nil {
		return err
	}
	after, err := replace(string(before), rendered)
	if err != nil {
		return fmt.Errorf("rendering %s: %w", path, err)
	}
	if err := os.WriteFile(path, []byte(after), 0o644); err != nil {
		return fmt.Errorf("writing the README: %w", err)
	}
	return nil
}

// table is a part of the README that is rendered.
type table struct {
	name string // as in its two comments
	text string // Markdown, with a line feed at its end
}

func (t table) begin() string {
	return "<!-- " + t.name + ": rendered by go generate ./cmd/readme -->\n"
}

func (t table) end() string { return "<!-- end of " + t.name + " -->\n" }

// replace returns text with each table between its two comments. The error
// names the tables that have no place there.
func replace(text string, all []table) (string, error) {
	var errs []error
	for _, t := range all {
		before, rest, begins := strings.Cut(text, t.begin())
		_, after, ends := strings.Cut(rest, t.end())
		if !begins || !ends {
			errs = append(errs, fmt.Errorf("the table %q has no place: want the lines %q and %q, in this order", t.name, t.begin(), t.end()))
			continue
		}
		text = before + t.begin() + "\n" + t.text + "\n" + t.end() + after
	}
	return text, errors.Join(errs...)
}
