// Affected prints the tests in labs that a change has to pass, besides the core that
// each change has to pass. make test runs what it prints.
//
//	affected [-base COMMIT] [-all] [-o lines|matrix]
//
// A line is one call of go test, with tabs between its fields: the package, its build tags, a
// flag that chooses tests, and the reason. Lines that begin with # name the packages that are left
// to the night. The change is the difference between COMMIT and the work tree. The default is
// the commit at which this branch left origin/main; on origin/main itself, or without
// one, the commit before. Without any earlier commit the core is everything.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

func main() {
	base := flag.String("base", os.Getenv("RELAPSE_BASE"), "the commit to compare with")
	all := flag.Bool("all", false, "print all packages with tests in labs that are not the night's")
	output := flag.String("o", "lines", "lines, or matrix: the JSON of GitHub's matrix")
	flag.Parse()
	if err := run(*base, *all, *output); err != nil {
		fmt.Fprintln(os.Stderr, "affected:", err)
		os.Exit(1)
	}
}

func run(base string, all bool, output string) error {
	tree, err := readTree()
	if err != nil {
		return err
	}
	var runs []Run
	if all {
		runs = tree.All()
	} else {
		files, err := changedFiles(base)
		if err != nil {
			return err
		}
		runs = tree.Select(files)
	}
	if output == "matrix" {
		return json.NewEncoder(os.Stdout).Encode(map[string][]Run{"include": runs})
	}
	chosen := map[string]bool{}
	for _, r := range runs {
		chosen[r.Package] = true
		fmt.Printf("%s\t%s\t%s\t%s\n", r.Package, r.Tags, r.Choice, r.Reason)
	}
	for _, p := range tree.inLabs() {
		if !chosen[p.folder] {
			fmt.Printf("# sudo go test -tags lab,night -count=1 -timeout 2h ./%s\n", p.folder)
		}
	}
	return nil
}

// changedFiles are the paths below the root of what a commit or work tree has changed, with files
// that are gone.
func changedFiles(base string) ([]string, error) {
	base, err := mergeBase(base)
	if err != nil || base == "" {
		return nil, err
	}
	changed, err := git("diff", "--name-only", "--no-renames", base, "--")
	if err != nil {
		return nil, err
	}
	added, err := git("ls-files", "--others", "--exclude-standard")
	return strings.Fields(changed + "\n" + added), err
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
