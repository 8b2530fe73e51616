package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/dirhash"

	"github.com/relapse-dev/relapse/cmd/relapse/portable"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host"
	"github.com/relapse-dev/relapse/topology/status"
)

const modulePath = "github.com/relapse-dev/relapse"

// sourceRoot finds relapse's source, from which images are built: the source embedded in a distributed program, or else
// the folder above the program, or above the working directory, that has relapse's go.mod.
func sourceRoot() (string, error) {
	if len(packedSource) > 0 {
		return unpacked(packedSource)
	}
	var starts []string
	if program, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(program))
	}
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if err == nil && strings.HasPrefix(string(text), "module "+modulePath+"\n") {
				if err := trusted(filepath.Join(dir, "go.mod"), os.Geteuid(), os.Getenv("SUDO_UID")); err != nil {
					return "", usagef("finding relapse's source: %w", err)
				}
				return dir, nil
			}
			// Folders above the program may be another user's: an unreadable go.mod, or a folder, is not the source.
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EISDIR) {
				return "", fmt.Errorf("finding relapse's source: %w", err)
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errNoSource
}

var errNoSource = usagef("relapse builds its images from its own source, and cannot find it: run it from a checkout")

// trusted returns an error if a file of relapse's source belongs neither to root, nor to the user who runs relapse, nor
// to the user who called sudo: images built from the source run as root, and any user can place a go.mod in /tmp.
func trusted(file string, uid int, sudo string) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	return trustedOwner(file, int(info.Sys().(*syscall.Stat_t).Uid), uid, sudo)
}

func trustedOwner(file string, owner, uid int, sudo string) error {
	if owner == 0 || owner == uid || strconv.Itoa(owner) == sudo {
		return nil
	}
	return fmt.Errorf("%s belongs to uid %d, and relapse runs as uid %d: run it from a checkout of your own", file, owner, uid)
}

func onCatalogue(do func(cmd *cobra.Command, c *images.Catalogue, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		catalogue, _, err := openCatalogue()
		if err != nil {
			return err
		}
		return do(cmd, catalogue, args)
	}
}

func openCatalogue() (*images.Catalogue, string, error) {
	root, err := sourceRoot()
	if err != nil {
		return nil, "", err
	}
	catalogue, err := images.Open(root)
	if err != nil {
		return nil, "", usagef("%w", err) // the recipes of images are input
	}
	return catalogue, root, nil
}

func doctorCommand() *cobra.Command {
	var on subnets
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine can run labs, and print how to fix it if not",
		Args:  portable.NoArgs,
		RunE: onCatalogue(func(cmd *cobra.Command, catalogue *images.Catalogue, _ []string) error {
			all := slices.Clone(scenarios.All)
			if err := on.move(all); err != nil {
				return err
			}
			report := host.Inspect(cmd.Context(), needs(catalogue, each.Of(all, topologyOf)...))
			if err := report.Write(cmd.OutOrStdout()); err != nil {
				return err
			}
			return report.Err()
		}),
	}
	on.register(cmd)
	return cmd
}

func setupCommand() *cobra.Command {
	var undo bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Prepare this machine for labs; prints each step before it takes it",
		Args:  portable.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			announce := func(step string) { fmt.Fprintln(cmd.OutOrStdout(), "setup: "+step) }
			if undo {
				return host.Undo(cmd.Context(), announce)
			}
			catalogue, root, err := openCatalogue()
			if err != nil {
				return err
			}
			if _, err := host.Setup(cmd.Context(), needs(catalogue), root, announce); err != nil {
				return status.Machine("%w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "undo the changes of setup")
	return cmd
}

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

// unpacked returns the folder of the source that is embedded in a distributed program, in the user's cache folder.
// archive is a zip file by git archive. A folder that exists is complete.
func unpacked(archive []byte) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("choosing the folder of relapse's source: %w", err)
	}
	parent := filepath.Join(cache, "relapse", "source")
	if os.Geteuid() == 0 && !ofRoot(parent) {
		parent = sourceOfRoot
	}
	sum := sha256.Sum256(archive)
	dir := filepath.Join(parent, hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("unpacking relapse's source: %w", err)
	}
	partial, err := os.MkdirTemp(parent, ".partial-")
	if err != nil {
		return "", fmt.Errorf("unpacking relapse's source: %w", err)
	}
	defer os.RemoveAll(partial)
	if err := unpack(partial, archive); err != nil {
		return "", fmt.Errorf("unpacking relapse's source to %s: %w", parent, err)
	}
	if err := os.Chmod(partial, 0o755); err != nil {
		return "", fmt.Errorf("unpacking relapse's source: %w", err)
	}
	// Another process of relapse may have unpacked it meanwhile.
	if err := os.Rename(partial, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("unpacking relapse's source: %w", err)
	}
	return dir, nil
}

// sourceOfRoot is the folder in which root unpacks the source if other users may write to the cache folder.
var sourceOfRoot = "/var/cache/relapse/source"

// ofRoot reports whether only root may write to a folder and to the folders above it. Missing folders are skipped.
func ofRoot(dir string) bool {
	for ; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 || info.Mode()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return false
		}
	}
	return true
}

// unpack writes the files of an archive to a folder. Whatever the umask, only their owner may write to them.
func unpack(dir string, archive []byte) error {
	files, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return err
	}
	defer syscall.Umask(syscall.Umask(0o022))
	return os.CopyFS(dir, files)
}
