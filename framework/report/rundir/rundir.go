// Package rundir reads and writes folders of runs. A run may come from another person,
// as an archive that was unpacked: what is in it is not trusted. A name never leads out
// of the folder, only regular files are read, a file is replaced and never written
// through, and each read has a limit.
package rundir

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
)

// Limits of what is read.
const (
	// MaxFile is the size in bytes of the largest file that is read as a whole. A
	// snapshot of a cluster with ten thousand Services takes a tenth of it.
	MaxFile = 128 << 20
	// MaxLine is the size in bytes of the longest line of a compressed file: a poll
	// with its snapshot.
	MaxLine = MaxFile
	// MaxLines is the number of lines of a compressed file: ten polls a second for a day.
	MaxLines = 1_000_000
	// maxText is the size in bytes of all lines of a compressed file, and maxObjects how many objects of JSON
	// a line has: "{}" takes a hundred times its size in memory.
	maxText    = 16 << 30
	maxObjects = 5_000_000
	// maxWindow is the window in bytes of a zstd frame, which the decoder allocates.
	// Records are written with 4 MiB.
	maxWindow = 8 << 20
	// maxEntries is the number of files and folders of a run: --repeat 400 with five
	// variants that fail, each with the 100 files of a failed one.
	maxEntries = 200_000
	// maxDepth is the number of folders that a file of a run is in. The deepest is
	// evidence/VARIANT/run-01; a file is opened folder by folder.
	maxDepth = 8
	// maxRuns is the number of folders that are searched for runs.
	maxRuns = 100_000
)

// UnsafeError says why a folder, or a file of it, is not read.
type UnsafeError struct {
	Path string
	Why  string
}

func (e *UnsafeError) Error() string { return fmt.Sprintf("%s is not read: %s", e.Path, e.Why) }

// RelapseStatus is 2: bad input.
func (*UnsafeError) RelapseStatus() int { return 2 }

// name is what scenarios, runs and variants may be called: they become names of files,
// and parts of what is printed.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)

// IsName reports whether a text can be the name of a scenario or of a run.
func IsName(text string) bool { return name.MatchString(text) }

// Folder is an open folder of a run.
type Folder struct {
	dir  string
	root *os.Root
}

// Open opens a folder. The folder itself may be reached through links, such as latest.
func Open(dir string) (*Folder, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Folder{dir, root}, nil
}

// Close ends the use of the folder.
func (f *Folder) Close() error { return f.root.Close() }

func (f *Folder) path(name string) string { return filepath.Join(f.dir, filepath.FromSlash(name)) }

func (f *Folder) failed(name string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = &fs.PathError{Op: strings.TrimSuffix(at.Op, "at"), Path: f.path(name), Err: at.Err}
		if at.Err.Error() == "path escapes from parent" { // os does not export it
			return &UnsafeError{f.path(name), "it leads out of the folder"}
		}
	}
	return err
}

// Open opens a regular file by its name, which is relative to the folder and has slashes.
func (f *Folder) Open(name string) (*os.File, error) {
	before, err := f.root.Lstat(name)
	if err != nil {
		return nil, f.failed(name, err)
	}
	if !before.Mode().IsRegular() {
		return nil, &UnsafeError{f.path(name), "it is " + kind(before.Mode()) + ", and not a regular file"}
	}
	// What the name stands for may be replaced at any moment. The open of a FIFO must not
	// wait for a writer.
	file, err := f.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, f.failed(name, err)
	}
	opened, err := file.Stat()
	if err == nil && !os.SameFile(before, opened) {
		err = &UnsafeError{f.path(name), "it was replaced while it was opened"}
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// ReadFile reads a regular file of at most MaxFile bytes.
func (f *Folder) ReadFile(name string) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, MaxFile+1))
	if err == nil && len(text) > MaxFile {
		err = &UnsafeError{f.path(name), fmt.Sprintf("it has more than %d bytes", MaxFile)}
	}
	return text, err
}

// Lines gives each whole line of a file that is compressed with zstd to a function,
// without its end, until the function returns false or an error. A line that a killed
// process has not finished is left out.
func (f *Folder) Lines(name string, each func(line []byte) (bool, error)) error {
	file, err := f.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	decoder, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return fmt.Errorf("reading %s: %w", f.path(name), err)
	}
	defer decoder.Close()
	lines := bufio.NewReaderSize(decoder, 64<<10)
	read := 0
	for n := 1; ; n++ {
		line, err := readLine(lines)
		read += len(line)
		switch {
		case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case errors.Is(err, errLong):
			return &UnsafeError{f.path(name), fmt.Sprintf("line %d has more than %d bytes", n, MaxLine)}
		case err != nil:
			return &UnsafeError{f.path(name), "it is not what a run compresses with zstd: " + err.Error()}
		case n > MaxLines:
			return &UnsafeError{f.path(name), fmt.Sprintf("it has more than %d lines", MaxLines)}
		case read > maxText:
			return &UnsafeError{f.path(name), fmt.Sprintf("it has more than %d bytes", maxText)}
		case bytes.Count(line, []byte("{")) > maxObjects:
			return &UnsafeError{f.path(name), fmt.Sprintf("line %d has more than %d objects", n, maxObjects)}
		}
		if more, err := each(line); err != nil || !more {
			return err
		}
	}
}

var errLong = errors.New("long line")

// readLine reads a line of at most MaxLine bytes, and returns it without its end.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > MaxLine {
			return nil, errLong
		}
		line = append(line, part...)
		if err == nil {
			return bytes.TrimSuffix(line, []byte("\n")), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// Files are the names of all files below a folder of the run, "." for all, with slashes
// and sorted; none where it does not exist. Anything that is neither a regular file nor
// a folder is an *UnsafeError: a run writes nothing else.
func (f *Folder) Files(under string) ([]string, error) { return f.files(under, maxEntries) }

func (f *Folder) files(under string, most int) ([]string, error) {
	var all []string
	entries := 0
	err := fs.WalkDir(f.root.FS(), under, func(name string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // a run that goes on replaces files
			return nil
		case err != nil:
			return f.failed(name, err)
		case !isPrintable(name):
			return &UnsafeError{fmt.Sprintf("%s/%q", f.dir, name), "its name has control characters"}
		case entries == most:
			return &UnsafeError{f.path(under), fmt.Sprintf("it has more than %d files and folders; "+
				"if relapse wrote them, run the scenario with fewer variants (--variant) or a smaller --repeat", most)}
		case strings.Count(name, "/") > maxDepth:
			return &UnsafeError{f.path(name), fmt.Sprintf("it is in more than %d folders", maxDepth)}
		}
		entries++
		switch {
		case e.IsDir():
			return nil
		case !e.Type().IsRegular():
			return &UnsafeError{f.path(name), "it is " + kind(e.Type()) + ", and not a regular file"}
		}
		all = append(all, name)
		return nil
	})
	return all, err
}

func isPrintable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

func kind(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "a link"
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// Replace writes a file, with the folders that it is in, or replaces it. A reader never
// sees half of it, and a link of its name is replaced and not followed.
func (f *Folder) Replace(name string, text []byte) error {
	return f.ReplaceWith(name, func(out io.Writer) error {
		_, err := out.Write(text)
		return err
	})
}

// ReplaceWith is Replace with what a function writes.
func (f *Folder) ReplaceWith(name string, write func(io.Writer) error) error {
	if err := f.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return f.failed(name, err)
	}
	// No one can prepare this name, and an existing file of it is an error.
	temporary := name + "." + rand.Text() + ".tmp"
	file, err := f.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return f.failed(name, err)
	}
	if err = errors.Join(write(file), file.Close()); err == nil {
		err = f.root.Rename(temporary, name)
	}
	if err != nil {
		_ = f.root.Remove(temporary) // half of it, on a full disk
		return f.failed(name, err)
	}
	return nil
}

// Copy copies the files below a folder of another run to a folder of this one.
func (f *Folder) Copy(to string, from *Folder, under string) error {
	names, err := from.Files(under)
	for _, name := range names {
		if err = f.copyFile(path.Join(to, strings.TrimPrefix(name, under)), from, name); err != nil {
			break
		}
	}
	return err
}

func (f *Folder) copyFile(to string, from *Folder, name string) error {
	source, err := from.Open(name)
	if err != nil {
		return err
	}
	defer source.Close()
	return f.ReplaceWith(to, func(out io.Writer) error {
		_, err := io.Copy(out, source)
		return err
	})
}

// Replace is Folder.Replace for a file by its path. The folder exists.
func Replace(file string, text []byte) error {
	f, err := Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Replace(filepath.Base(file), text)
}

// ReadFile is Folder.ReadFile for a file by its path.
func ReadFile(file string) ([]byte, error) {
	f, err := Open(filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadFile(filepath.Base(file))
}

// Check returns an *UnsafeError where a folder holds what no run writes.
func Check(dir string) error {
	f, err := Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Files(".")
	return err
}

// Find finds the folders that hold a file of a name: dir itself, or folders below it, in order of
// their paths. Links, such as latest, are not followed, and folders called skip are not searched.
func Find(dir, file, skip string) ([]string, error) {
	var found []string
	searched := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && e.Name() == skip:
			return filepath.SkipDir
		case e.IsDir():
			if searched++; searched > maxRuns {
				return &UnsafeError{dir, fmt.Sprintf("it has more than %d folders", maxRuns)}
			}
		case e.Name() == file && !e.Type().IsRegular():
			return &UnsafeError{path, "it is " + kind(e.Type()) + ", and not a regular file"}
		case e.Name() == file:
			found = append(found, filepath.Dir(path))
		}
		return nil
	})
	return found, err
}
