package main

import (
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
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

// commit is what a program was built from.
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

// builtFrom is the commit that this program was built from, if go build asked git.
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
	return c, c.hash != ""
}
