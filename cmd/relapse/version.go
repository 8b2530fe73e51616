package main

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/sumdb/dirhash"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, Go's version, and the source of the images",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := sourceRoot()
			if err != nil {
				return err
			}
			recipes, err := dirhash.HashDir(filepath.Join(root, "images"), "images", dirhash.Hash1)
			if err != nil {
				return fmt.Errorf("reading the recipes of the images: %w", err)
			}
			printVersion(cmd.OutOrStdout(), root, recipes)
			return nil
		},
	}
}

func printVersion(out io.Writer, root, recipes string) {
	built, known := builtFrom()
	fmt.Fprintf(out, "version  %s\n", thisVersion())
	if known {
		fmt.Fprintf(out, "commit   %s\n", built)
	} else {
		fmt.Fprintln(out, "commit   not known: make build does not ask git; make dist does")
	}
	fmt.Fprintf(out, "go       %s %s/%s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(out, "recipes  %s\n", recipes)
	fmt.Fprintf(out, "source   %s\n", root)
}

type commit struct {
	hash, time string
	// modified is true if files differed from the commit.
	modified bool
}

func (c commit) String() string {
	text := c.hash + " of " + c.time
	if c.modified {
		text += ", with changes"
	}
	return text
}

// builtFrom is the commit that this program was built from, if go build asked git, or if
// git archive wrote the source.
func builtFrom() (c commit, known bool) {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return c, false
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			c.hash = s.Value
		case "vcs.time":
			c.time = s.Value
		case "vcs.modified":
			c.modified = s.Value == "true"
		}
	}
	if c.hash == "" {
		c, _ = archived(archivedCommit)
	}
	return c, c.hash != ""
}

// archivedCommit is a commit's hash, the seconds of its time and its tag, as git archive
// writes them into this file (attribute export-subst). In a checkout it is a placeholder.
//
//go:embed commit.txt
var archivedCommit string

// afterTag is the end of what git describes a commit by whose tag is an earlier commit's.
var afterTag = regexp.MustCompile(`-[0-9]+-g[0-9a-f]+$`)

// archived reads what git archive has written, and names the version as go build does: the
// tag of the commit, or else a pseudo-version. Both results are empty for the placeholder.
func archived(text string) (c commit, version string) {
	fields := strings.Fields(text)
	if len(fields) < 2 || len(fields[0]) < 12 {
		return commit{}, ""
	}
	seconds, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return commit{}, ""
	}
	at := time.Unix(seconds, 0).UTC()
	c = commit{hash: fields[0], time: at.Format(time.RFC3339)}
	if len(fields) == 3 && semver.IsValid(fields[2]) && !afterTag.MatchString(fields[2]) {
		return c, fields[2]
	}
	return c, module.PseudoVersion("v0", "", at, c.hash[:12])
}

// thisProgram identifies this program for reports, by its version and the digest of its file.
func thisProgram() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading this program: %w", err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("reading this program: %w", err)
	}
	return fmt.Sprintf("%s sha256:%s", thisVersion(), hex.EncodeToString(sum.Sum(nil))[:16]), nil
}

func thisVersion() string {
	const unknown = "(devel)" // as go build has it
	if info, known := debug.ReadBuildInfo(); known && info.Main.Version != "" && info.Main.Version != unknown {
		return info.Main.Version
	}
	_, version := archived(archivedCommit)
	return cmp.Or(version, unknown)
}
