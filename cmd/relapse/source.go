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
	"syscall"
)

// unpacked is the source tree that a distributed program has in itself, in the user's cache
// folder: images are built from it. archive is a zip file, as git archive writes it. A folder that
// is there was unpacked as a whole.
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
	// Another run of relapse may have unpacked it meanwhile.
	if err := os.Rename(partial, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("unpacking relapse's source: %w", err)
	}
	return dir, nil
}

// sourceOfRoot is where root unpacks the source if others may write to the cache folder: root builds from it.
var sourceOfRoot = "/var/cache/relapse/source"

// ofRoot reports whether root alone may write to a folder and to those above it, as far as they are there.
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

// unpack writes the files of an archive to a folder. Only their owner may write to them, whatever
// this process allows for others: images are built from them.
func unpack(dir string, archive []byte) error {
	files, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return err
	}
	defer syscall.Umask(syscall.Umask(0o022))
	return os.CopyFS(dir, files)
}
