package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/relapse-dev/relapse/framework/report/rundir"
)

// window is the window of the compression, in bytes: some hundred polls of a small lab, and
// a few of one with thousands of Services.
const window = 4 << 20

// file is the file of a history. After its first error nothing more is written.
type file struct {
	mu   sync.Mutex
	file *os.File
	out  *zstd.Encoder
	err  error
}

func (f *file) create(dir string) {
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		f.file, err = os.Create(filepath.Join(dir, FileName))
	}
	if err == nil {
		// One thread is enough: entries are as frequent as polls.
		f.out, err = zstd.NewWriter(f.file, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window), zstd.WithLowerEncoderMem(true))
	}
	if err != nil {
		f.err = fmt.Errorf("creating the record: %w", err)
	}
}

func (f *file) write(e Entry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.out == nil || f.err != nil {
		return
	}
	text, err := json.Marshal(e)
	if err == nil {
		_, err = f.out.Write(append(text, '\n'))
	}
	if err == nil {
		err = f.out.Flush()
	}
	if err != nil {
		f.err = fmt.Errorf("writing the record: %w", err)
	}
}

func (f *file) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.out != nil {
		f.err = errors.Join(f.err, f.out.Close(), f.file.Close())
		f.out = nil
	}
	err := f.err
	f.err = nil
	return err
}

// OtherSchemaError says that a record has another schema.
type OtherSchemaError struct{ Path, Schema string }

func (e *OtherSchemaError) Error() string {
	return fmt.Sprintf("reading the record %s: it has the schema %q, and this relapse reads %q: judge it with the relapse that wrote it",
		e.Path, e.Schema, Schema)
}

// read calls each with the entries of a file, to the end of the file or until it returns false.
func read(path string, each func(Entry) bool) error {
	run, err := rundir.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer run.Close()
	n := 0
	err = run.Lines(filepath.Base(path), func(line []byte) (bool, error) {
		var e Entry
		if n++; n == 1 { // a record of another schema need not fit into an Entry
			var first struct{ Begin Begin }
			if json.Unmarshal(line, &first) != nil || first.Begin.Schema != Schema {
				return false, &OtherSchemaError{path, first.Begin.Schema}
			}
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return false, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		if n == 1 && e.Begin == nil { // a second "begin", which is null
			return false, &OtherSchemaError{Path: path}
		}
		for _, s := range e.Probes {
			if err := s.Validate(); err != nil {
				return false, fmt.Errorf("%s, line %d: %w", path, n, err)
			}
		}
		return each(e), nil
	})
	var other *OtherSchemaError
	switch {
	case err == nil && n == 0:
		return &OtherSchemaError{Path: path}
	case err == nil || errors.As(err, &other) || errors.Is(err, fs.ErrNotExist):
		return err
	}
	return fmt.Errorf("reading the record: %w", err)
}

// ReadBegin reads the first entry of the record in a folder.
func ReadBegin(dir string) (Begin, error) {
	var b Begin
	err := read(filepath.Join(dir, FileName), func(e Entry) bool {
		b = *e.Begin
		return false
	})
	return b, err
}
