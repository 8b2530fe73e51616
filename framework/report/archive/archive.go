// Package archive packs the folder of a run into one file that can be attached to an
// issue in a vendor's tracker: small enough for it, with the hash of each file, and, on
// request, with addresses and names replaced.
package archive

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/docker/go-units"
	"github.com/klauspost/compress/gzip"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/rundir"
)

// Options say how a run is packed.
type Options struct {
	// MaxBytes is the largest size of the archive.
	MaxBytes int64
	// Redact replaces addresses and names. Machine is this machine's name, which is
	// replaced as well.
	Redact  bool
	Machine string
}

// TooLargeError says that an archive cannot be made as small as it has to be.
type TooLargeError struct{ Bytes, Max int64 }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("report.json, report.html and the manifest alone take %s; the archive may take at most %s",
		units.HumanSize(float64(e.Bytes)), units.HumanSize(float64(e.Max)))
}

// Write packs the run in a folder into a file: a tar archive compressed with gzip, with one
// folder of the run's name. If the file exists, the error is fs.ErrExist. If the run does
// not fit, its largest files are left out; if report.json and report.html alone do not fit,
// the error is a *TooLargeError.
func Write(dir, file string, o Options) (m report.Manifest, err error) {
	r, err := report.Read(filepath.Join(dir, "report.json"))
	if err != nil {
		return m, err
	}
	run, err := rundir.Open(dir)
	if err != nil {
		return m, fmt.Errorf("packing the run in %s: %w", dir, err)
	}
	defer func() { run.Close() }()
	m = report.Manifest{Schema: report.ManifestSchema, Scenario: r.Scenario, Run: r.Run, Verdict: r.Verdict, Files: []report.Packed{}}
	if o.Redact {
		redacted, err := os.MkdirTemp("", "relapse-archive-")
		if err != nil {
			return m, fmt.Errorf("packing the run in %s: %w", dir, err)
		}
		defer os.RemoveAll(redacted)
		if m.Redaction, m.LeftOut, err = redact(run, redacted, r, o); err != nil {
			return m, fmt.Errorf("replacing addresses and names of the run in %s: %w", dir, err)
		}
		run.Close()
		if run, err = rundir.Open(redacted); err != nil {
			return m, fmt.Errorf("packing the run in %s: %w", dir, err)
		}
	}
	// An archive gets a new manifest: the manifest of an earlier archive is not packed.
	paths, err := filesOf(run)
	if err != nil {
		return m, fmt.Errorf("packing the run in %s: %w", dir, err)
	}
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return m, fmt.Errorf("packing the run: %w", err)
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			os.Remove(file)
		}
	}()
	p := packer{top: r.Scenario + "-" + r.Run, time: r.Started}
	for _, name := range paths {
		if err := p.add(run, name); err != nil {
			return m, fmt.Errorf("packing the run: %w", err)
		}
	}
	if err := p.fit(&m, o.MaxBytes); err != nil {
		return m, err
	}
	for _, one := range p.members {
		if _, err := out.Write(one.packed); err != nil {
			return m, fmt.Errorf("packing the run: %w", err)
		}
	}
	return m, nil
}

// filesOf are the paths of a run's files, relative to its folder and with slashes, report.json
// first. The manifest of an archive that was unpacked is left out: each archive gets its own.
func filesOf(run *rundir.Folder) ([]string, error) {
	all, err := run.Files(".")
	all = slices.DeleteFunc(all, func(name string) bool { return name == report.ManifestName || path.Ext(name) == ".tmp" })
	slices.SortStableFunc(all, func(a, b string) int { return rank(a) - rank(b) })
	return all, err
}

// rank is the order of files in an archive: what people read first comes first.
func rank(name string) int {
	switch name {
	case report.ManifestName:
		return 0
	case "report.json":
		return 1
	case page.Name:
		return 2
	}
	return 3
}

// packer packs files, each compressed on its own. The archive is their concatenation, so
// its size is known before it is written.
type packer struct {
	top     string
	time    time.Time
	members []member
}

type member struct {
	report.Packed
	packed []byte
}

func (p *packer) add(run *rundir.Folder, name string) error {
	text, err := run.ReadFile(name)
	if err != nil {
		return err
	}
	one, err := p.pack(name, text)
	p.members = append(p.members, one)
	return err
}

func (p *packer) pack(name string, text []byte) (member, error) {
	sum := sha256.Sum256(text)
	one := member{Packed: report.Packed{Path: name, Bytes: int64(len(text)), SHA256: hex.EncodeToString(sum[:])}}
	var to bytes.Buffer
	compressed := gzip.NewWriter(&to)
	entry := tar.NewWriter(compressed)
	// No owner, and the time of the run: the header reveals nothing about this machine.
	err := entry.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: path.Join(p.top, name), Mode: 0o644, Size: int64(len(text)), ModTime: p.time.Truncate(time.Second),
	})
	if err == nil {
		_, err = entry.Write(text)
	}
	// Flush and not Close: the tar archive goes on after this file.
	err = errors.Join(err, entry.Flush(), compressed.Close())
	one.packed = to.Bytes()
	return one, err
}

// fit leaves out files until all that remains, with the manifest, is small enough.
func (p *packer) fit(m *report.Manifest, most int64) error {
	end, err := trailer()
	if err != nil {
		return err
	}
	for {
		m.Files = []report.Packed{}
		size := int64(len(end))
		for _, one := range p.members {
			m.Files, size = append(m.Files, one.Packed), size+int64(len(one.packed))
		}
		text, err := json.MarshalIndent(m, "", "  ")
		if err != nil {
			return fmt.Errorf("encoding the manifest: %w", err)
		}
		manifest, err := p.pack(report.ManifestName, append(text, '\n'))
		if err != nil {
			return fmt.Errorf("packing the manifest: %w", err)
		}
		if size += int64(len(manifest.packed)); size <= most {
			p.members = append(slices.Insert(p.members, 0, manifest), member{packed: end})
			return nil
		}
		largest := -1
		for i, one := range p.members {
			if rank(one.Path) > rank(page.Name) && (largest < 0 || len(one.packed) > len(p.members[largest].packed)) {
				largest = i
			}
		}
		if largest < 0 {
			return &TooLargeError{size, most}
		}
		m.LeftOut = append(m.LeftOut, report.LeftOut{
			Packed: p.members[largest].Packed, Why: "the archive would be larger than " + units.HumanSize(float64(most)),
		})
		slices.SortFunc(m.LeftOut, func(a, b report.LeftOut) int { return cmp.Compare(a.Path, b.Path) })
		p.members = slices.Delete(p.members, largest, largest+1)
	}
}

func trailer() ([]byte, error) {
	var to bytes.Buffer
	compressed := gzip.NewWriter(&to)
	err := errors.Join(tar.NewWriter(compressed).Close(), compressed.Close())
	return to.Bytes(), err
}
