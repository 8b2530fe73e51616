package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
)

// unpacked is the source tree that a distributed program has in itself, in the user's cache
// folder: images are built from it. archive is a gzipped tar, as git archive writes it. A folder
// that is there was unpacked as a whole.
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

func unpack(dir string, archive []byte) error {
	compressed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for in := tar.NewReader(compressed); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			// The checksum is behind the tar's end.
			_, err := io.Copy(io.Discard, compressed)
			return err
		}
		if err != nil {
			return err
		}
		switch header.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(path.Clean(header.Name), 0o755)
		case tar.TypeReg:
			err = unpackFile(root, header, in)
		case tar.TypeXGlobalHeader: // git's, with the commit
		default:
			err = fmt.Errorf("%s has type %q: expected files and folders", header.Name, header.Typeflag)
		}
		if err != nil {
			return err
		}
	}
}

func unpackFile(root *os.Root, header *tar.Header, in io.Reader) error {
	if err := root.MkdirAll(path.Dir(header.Name), 0o755); err != nil {
		return err
	}
	file, err := root.OpenFile(header.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, header.FileInfo().Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(file, in)
	return errors.Join(err, file.Close())
}
