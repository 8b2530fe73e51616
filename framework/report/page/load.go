package page

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// stored is a variant, read from its report and its evidence.
type stored struct {
	report.Variant
	files []file
	// traffic has the newest timeline of each start of a probe.
	traffic   []probe.Timeline
	presences []history.Presence
	changes   []snapshot.Change
	more      int // changes that are in the record only
	// before is a snapshot of the baseline; after is one between the fault and the first remedy.
	// Each is nil where there is none.
	before, after *snapshot.Snapshot
}

type file struct {
	Name, Path string // Path is relative to the report
	Bytes      int64
}

// load reads a variant's evidence from a run's folder. live is the history of a variant of
// this process; nil for one that is read from the folder. Files that cannot be read are left
// out: an incomplete page is better than none. The second result has their errors.
func load(dir string, v report.Variant, live *history.History) (stored, []string) {
	s := stored{Variant: v}
	var unread []string
	if v.EvidenceDir == "" {
		return s, nil
	}
	run, err := rundir.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, []string{err.Error()}
	}
	defer run.Close()
	names, err := run.Files(v.EvidenceDir)
	if err != nil {
		return s, []string{err.Error()}
	}
	for _, name := range names {
		if path.Dir(name) != v.EvidenceDir {
			continue
		}
		f := file{Name: path.Base(name), Path: name}
		if f.Bytes, err = sizeOf(run, name); err != nil {
			unread = append(unread, err.Error())
		}
		s.files = append(s.files, f)
		if err := s.read(run, name); err != nil {
			unread = append(unread, err.Error())
		}
	}
	if live == nil {
		live, err = history.Load(filepath.Join(dir, v.EvidenceDir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			unread = append(unread, err.Error())
		}
	}
	s.traffic, s.presences = live.Traffic(), live.Presences()
	s.changes, s.more = live.Changes()
	return s, unread
}

func (s *stored) read(run *rundir.Folder, name string) error {
	kind, moment := report.EvidenceOf(path.Base(name))
	to := &s.after
	switch {
	case kind != "snapshot":
		return nil
	case moment == report.AtBaseline:
		to = &s.before
	case moment != report.AfterFault && (moment != report.Observed || s.after != nil):
		return nil
	}
	text, err := run.ReadFile(name)
	if err != nil {
		return fmt.Errorf("reading evidence: %w", err)
	}
	var read *snapshot.Snapshot
	if err := json.Unmarshal(text, &read); err != nil {
		return fmt.Errorf("reading evidence %s: %w", path.Base(name), err)
	}
	*to = read
	return nil
}

func sizeOf(run *rundir.Folder, name string) (int64, error) {
	f, err := run.Open(name)
	if err != nil {
		return 0, fmt.Errorf("reading evidence: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("reading evidence: %w", err)
	}
	return info.Size(), nil
}

func (s stored) faultAt() time.Time {
	if s.Fault == nil {
		return time.Time{}
	}
	return s.Fault.Began
}

func timeOf(at *time.Time) time.Time {
	if at == nil {
		return time.Time{}
	}
	return *at
}

// key is the finding that best explains the outage: the earliest active one of the
// fault, else the earliest settling or latent one. Nil if there is none.
func (s stored) key() *report.Finding {
	var best *report.Finding
	rank := func(f report.Finding) int {
		switch {
		case f.State == detect.Active:
			return 0
		case f.State == detect.Pending:
			return 1
		}
		return 2
	}
	for i, f := range s.Findings {
		if f.During != "fault" {
			continue
		}
		if best == nil || rank(f) < rank(*best) || rank(f) == rank(*best) && timeOf(f.At).Before(timeOf(best.At)) {
			best = &s.Findings[i]
		}
	}
	return best
}

// ranked are the remedies: first the remedies that help, by their time to recover, then the
// ones without a verdict, then the ones that do not help.
func (s stored) ranked() []report.Remedy {
	rank := func(r report.Remedy) int {
		switch {
		case r.Verdict == "recovers" && r.TimeToRecoverMS != nil:
			return 0
		case r.Verdict == "recovers":
			return 1
		case r.Verdict == "does-not-help":
			return 3
		}
		return 2
	}
	all := slices.Clone(s.Remedies)
	slices.SortStableFunc(all, func(a, b report.Remedy) int {
		if c := cmp.Compare(rank(a), rank(b)); c != 0 || rank(a) != 0 {
			return c
		}
		return cmp.Compare(*a.TimeToRecoverMS, *b.TimeToRecoverMS)
	})
	return all
}

func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
