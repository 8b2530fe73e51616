package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
)

// epoch is the time of every file in every layer: equal inputs give equal layers.
var epoch = time.Unix(0, 0)

// whiteout is the prefix that marks a path of a lower layer as removed, and opaque the name that
// does so for all that a folder held (image-spec, "Whiteouts").
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

type layerWriter struct{ *tar.Writer }

// layer writes a blob whose digest is known only when it is whole.
func (l imageLayout) layer(fill func(*layerWriter) error) (v1.Descriptor, error) {
	f, err := os.Create(filepath.Join(string(l.Path), "blob"))
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer f.Close()
	hash := sha256.New()
	w := &layerWriter{tar.NewWriter(io.MultiWriter(f, hash))}
	if err := errors.Join(fill(w), w.Close()); err != nil {
		return v1.Descriptor{}, err
	}
	info, err := f.Stat()
	if err := errors.Join(err, f.Close()); err != nil {
		return v1.Descriptor{}, err
	}
	layer := v1.Descriptor{MediaType: types.OCIUncompressedLayer, Size: info.Size()}
	layer.Digest = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(hash.Sum(nil))}
	return layer, os.Rename(f.Name(), l.blob(layer.Digest))
}

// item is one path of a layer that is put together from a recipe. Exactly one
// of source, link and directory is set, or none, and text may be.
type item struct {
	path      string // absolute, in the image
	source    string // a file of this machine
	text      string // a file's content
	link      string // a symbolic link's target
	directory bool
	mode      fs.FileMode // with the setuid, setgid and sticky bits as chmod(1) has them
}

func (w *layerWriter) writeItems(items []item) error {
	slices.SortFunc(items, func(a, b item) int { return strings.Compare(a.path, b.path) })
	for i, it := range items {
		if i > 0 && items[i-1].path == it.path {
			return fmt.Errorf("%s comes from two places of the recipe", it.path)
		}
		if err := w.writeItem(it); err != nil {
			return fmt.Errorf("adding %s: %w", it.path, err)
		}
	}
	return nil
}

func (w *layerWriter) writeItem(it item) error {
	name := strings.TrimPrefix(path.Clean(it.path), "/")
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(it.mode), ModTime: epoch}
	switch {
	case it.directory:
		header.Typeflag = tar.TypeDir
		header.Name += "/"
		return w.WriteHeader(header)
	case it.link != "":
		header.Typeflag = tar.TypeSymlink
		header.Linkname = it.link
		return w.WriteHeader(header)
	case it.source == "":
		header.Size = int64(len(it.text))
		return w.file(header, strings.NewReader(it.text))
	}
	f, err := os.Open(it.source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header.Size = info.Size()
	return w.file(header, f)
}

func (w *layerWriter) file(header *tar.Header, content io.Reader) error {
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(w, content)
	return err
}

// transient are the folders that a container engine fills again: what is in them belongs to the build.
var transient = []string{"dev", "proc", "run", "sys", "tmp"}

// writeTree writes a root file system, or an overlay's upper folder, whose marks of removed files become whiteouts.
func (w *layerWriter) writeTree(root string) error {
	links := map[uint64]string{} // first path of each file with several, by inode
	return filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		if name == "." {
			return nil
		}
		if slices.Contains(transient, path.Dir(name)) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return w.writeEntry(file, name, info, links)
	})
}

func (w *layerWriter) writeEntry(file, name string, info fs.FileInfo, links map[uint64]string) error {
	stat := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode()&fs.ModeSocket != 0:
		return nil
	case info.Mode()&fs.ModeCharDevice != 0 && stat.Rdev == 0: // overlayfs: removed
		dir, base := path.Split(name)
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + whiteout + base, ModTime: epoch})
	}
	var target string
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(file); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name = name
	header.ModTime, header.AccessTime, header.ChangeTime = epoch, time.Time{}, time.Time{}
	header.Uname, header.Gname = "", ""
	if info.IsDir() {
		header.Name += "/"
	}
	if info.Mode().IsRegular() && stat.Nlink > 1 {
		if first, ok := links[stat.Ino]; ok {
			header.Typeflag, header.Linkname, header.Size = tar.TypeLink, first, 0
			return w.WriteHeader(header)
		}
		links[stat.Ino] = name
	}
	if capability, err := xattr(file, "security.capability"); err != nil {
		return err
	} else if capability != "" {
		header.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": capability}
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	if info.IsDir() {
		if value, err := xattr(file, "trusted.overlay.opaque"); err != nil {
			return err
		} else if value == "y" {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name + "/" + opaque, ModTime: epoch})
		}
		return nil
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

func xattr(file, name string) (string, error) {
	buf := make([]byte, 256) // a file capability has 24 bytes at most
	n, err := unix.Lgetxattr(file, name, buf)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading %s of %s: %w", name, file, err)
	}
	return string(buf[:n]), nil
}
