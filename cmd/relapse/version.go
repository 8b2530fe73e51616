package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/dirhash"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, Go's version, and the source of the images",
		Args:  portable.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			portable.PrintVersion(out)
			root, err := sourceRoot()
			if errors.Is(err, errNoSource) {
				fmt.Fprintln(out, "source   none: a program of make build without its checkout builds no images")
				return nil
			}
			if err != nil {
				return err
			}
			recipes, err := dirhash.HashDir(filepath.Join(root, "images"), "images", dirhash.Hash1)
			if err != nil {
				return fmt.Errorf("reading the recipes of the images: %w", err)
			}
			fmt.Fprintf(out, "recipes  %s\nsource   %s\n", recipes, root)
			return nil
		},
	}
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
	return fmt.Sprintf("%s sha256:%s", portable.ThisVersion(), hex.EncodeToString(sum.Sum(nil))[:16]), nil
}
