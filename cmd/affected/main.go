// Affected prints the tests in labs that a change has to pass, besides the core that
// each change has to pass. make test runs what it prints.
//
//	affected [-base COMMIT] [-all]
//
// A line is one call of go test, with tabs between its fields: the package, its build tags, a
// flag that chooses tests, and the reason. Lines that begin with # name the packages that are left
// to the night. The change is the difference between COMMIT and the work tree. The default is
// the commit at which this branch left origin/main; on origin/main itself, or without
// one, the commit before. Without any earlier commit the core is everything.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	base := flag.String("base", os.Getenv("RELAPSE_BASE"), "the commit to compare with")
	all := flag.Bool("all", false, "print all packages with tests in labs that are not the night's")
	flag.Parse()
	if err := run(*base, *all); err != nil {
		fmt.Fprintln(os.Stderr, "affected:", err)
		os.Exit(1)
	}
}

func run(base string, all bool) error {
	tree, err := readTree()
	if err != nil {
		return err
	}
	var runs []Run
	if all {
		runs = tree.All()
	} else {
		change, err := readChange(base)
		if err != nil {
			return err
		}
		runs = tree.Select(change)
	}
	chosen := map[string]bool{}
	for _, r := range runs {
		chosen[r.Package] = true
		fmt.Printf("%s\t%s\t%s\t%s\n", r.Package, r.Tags, r.Choice, r.Reason)
	}
	for _, folder := range slices.Sorted(maps.Keys(tree.packages)) {
		if tree.packages[folder].labs && !chosen[folder] {
			fmt.Printf("# sudo go test -tags lab,night -count=1 -timeout 2h ./%s\n", folder)
		}
	}
	return nil
}

// A Change is what a commit or work tree has changed.
type Change struct {
	Files []string // paths below the root, with those that are gone
	// Declared returns the exported names that a Go file declares, before or after the change.
	Declared func(file string) []string
}

func readChange(base string) (Change, error) {
	base, err := mergeBase(base)
	if err != nil || base == "" {
		return Change{}, err
	}
	changed, err := git("diff", "--name-only", "--no-renames", base, "--")
	if err != nil {
		return Change{}, err
	}
	added, err := git("ls-files", "--others", "--exclude-standard")
	if err != nil {
		return Change{}, err
	}
	return Change{
		Files: strings.Fields(changed + "\n" + added),
		Declared: func(file string) []string {
			before, _ := git("show", base+":"+file) // a file of the change has none
			after, _ := os.ReadFile(file)           // a file that is gone has none
			return append(exported(before), exported(string(after))...)
		},
	}, nil
}

// mergeBase returns the commit to compare with, or "" if there is none.
func mergeBase(base string) (string, error) {
	head, err := git("rev-parse", "HEAD")
	if err != nil || base != "" {
		return base, err
	}
	base, err = git("merge-base", "HEAD", "origin/main")
	if err != nil || base == head { // without a remote, or on its main
		base = "HEAD^"
	}
	if _, err := git("rev-parse", "--quiet", "--verify", base+"^{commit}"); err != nil {
		fmt.Fprintln(os.Stderr, "affected: there is no commit before this one: the core is all that is run")
		return "", nil
	}
	return base, nil
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
