package audit

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// saved is the name of the file of a read: a snapshot as the evidence of a run has it.
var saved = regexp.MustCompile(`^\d\d-snapshot-audit\.json$`)

// Save writes reads to a folder that Prepare has made.
func Save(dir string, reads []snapshot.Snapshot) error {
	folder, err := rundir.Open(dir)
	if err != nil {
		return fmt.Errorf("saving the reads: %w", err)
	}
	defer folder.Close()
	for i, s := range reads {
		text, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("saving read %d: %w", i+1, err)
		}
		if len(text) > rundir.MaxFile {
			return fmt.Errorf("saving read %d: it has %d bytes, and %d can be read again: keep it without the routers that have most routes",
				i+1, len(text), rundir.MaxFile)
		}
		err = folder.Replace(nameOf(i), text)
		if err == nil { // the folder may have been there, for others to read
			err = os.Chmod(filepath.Join(dir, nameOf(i)), 0o600)
		}
		if err != nil {
			return fmt.Errorf("saving read %d: %w", i+1, err)
		}
	}
	return nil
}

// Prepare makes a folder for Save, for this user alone. A folder that has reads already is an
// error.
func Prepare(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	switch names, err := savedIn(dir); {
	case err != nil:
		return err
	case len(names) > 0:
		return fmt.Errorf("%s has the reads of an audit already: expected a folder without them", dir)
	}
	return nil
}

// mostObjects bounds the objects of a saved read: what a hundred nodes may answer.
const mostObjects = 5_000_000

// IsSaved reports whether a folder has what Save has written; otherwise it is a bundle.
func IsSaved(dir string) bool {
	names, err := savedIn(dir)
	return err == nil && len(names) > 0
}

// Saved reads what Save has written. The folder may come from another person.
func Saved(dir string) ([]snapshot.Snapshot, error) {
	names, err := savedIn(dir)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		if name != nameOf(i) {
			return nil, fmt.Errorf("%s has no %s: expected what relapse audit --save has written", dir, nameOf(i))
		}
	}
	if len(names) == 0 || len(names) > mostReads {
		return nil, fmt.Errorf("%s has %d files such as 01-snapshot-audit.json: expected those that relapse audit --save has written",
			dir, len(names))
	}
	folder, err := rundir.Open(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	var reads []snapshot.Snapshot
	for _, name := range names {
		text, err := folder.ReadFile(name)
		if err != nil {
			return nil, err
		}
		s, err := snapshot.Parse(text, mostObjects)
		if err != nil {
			return nil, fmt.Errorf("%s/%s is no snapshot: %w", dir, name, err)
		}
		if s.Time.IsZero() || len(s.Sources) == 0 {
			return nil, fmt.Errorf("%s/%s is no snapshot of an audit: it has no time, or no sources", dir, name)
		}
		if s.Redacted {
			return nil, fmt.Errorf("%s/%s is for reading: its names and addresses were replaced, which cannot be undone", dir, name)
		}
		if asked(s, snapshot.Routers) && len(s.Routers) == 0 {
			return nil, fmt.Errorf("%s/%s asked for routers, and has none", dir, name)
		}
		reads = append(reads, s)
	}
	if len(reads) == 1 && reads[0].Nodes.Read {
		return nil, fmt.Errorf("%s has one read: expected two or three", dir)
	}
	return reads, nil
}

func nameOf(read int) string { return fmt.Sprintf("%02d-snapshot-audit.json", read+1) }

func asked(s snapshot.Snapshot, source snapshot.Source) bool {
	return slices.ContainsFunc(s.Sources, func(a snapshot.Asked) bool { return a.Name == source.String() })
}

func savedIn(dir string) ([]string, error) {
	folder, err := rundir.Open(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	names, err := folder.Files(".")
	if err != nil {
		return nil, err
	}
	return each.Where(names, saved.MatchString), nil
}
