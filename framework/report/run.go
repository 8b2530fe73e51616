package report

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/relapse-dev/relapse/topology/each"
)

// runName is the name of a run's folder: when it began, in UTC, so that the
// order of names is the order of time on any machine and in any season.
const runName = "2006-01-02T15-04-05Z"

// latest is the name of the link to the newest run that has a report.
const latest = "latest"

// NewRun creates the folder of a run of a scenario, output/scenario/run, and returns its
// path. Runs that begin in the same second get different folders.
func NewRun(output, scenario string, began time.Time) (dir string, err error) {
	parent := filepath.Join(output, scenario)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("creating the folder of the runs of %q: %w", scenario, err)
	}
	name := began.UTC().Format(runName)
	for n := 1; ; n++ {
		dir = filepath.Join(parent, name)
		if n > 1 {
			dir += fmt.Sprintf("-%d", n)
		}
		err := os.Mkdir(dir, 0o755)
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("creating the folder of a run of %q: %w", scenario, err)
		}
	}
}

// CheckOutput says why runs of a scenario could not be stored below output.
func CheckOutput(output, scenario string) error {
	parent := filepath.Join(output, scenario)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(parent, ".tried-")
	if err != nil {
		return err
	}
	_, err = file.WriteString("a full disk takes names, and no text")
	err = errors.Join(err, file.Close(), os.Remove(file.Name()))
	_ = os.Remove(parent) // unless there are runs in it
	return err
}

// Latest is the link to the newest run of a scenario. It does not exist before the first
// run has ended.
func Latest(output, scenario string) string { return filepath.Join(output, scenario, latest) }

// SetLatest makes a run that has its report the latest of its scenario.
func SetLatest(dir string) error {
	parent, name := filepath.Split(dir)
	link := filepath.Join(parent, latest)
	// A link cannot be written over, but another can be renamed to it. The run's
	// name keeps two runs that end at once from meeting here.
	temporary := filepath.Join(parent, "."+name+".latest")
	err := os.Symlink(name, temporary)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = os.Rename(temporary, link)
	}
	if err != nil {
		return fmt.Errorf("making %s the latest run: %w", dir, err)
	}
	return nil
}

// Keep bounds what the runs of one scenario may take together.
type Keep struct {
	Runs  int   // at most so many
	Bytes int64 // at most so much on disk
}

// Removed is an old run that was removed.
type Removed struct {
	Dir   string
	Bytes int64
}

// PruneRuns removes the oldest runs of a scenario until the others are within bounds, and
// returns the removed runs. The newest run stays, however large it is. Folders whose
// names are not made by NewRun stay.
func PruneRuns(output, scenario string, keep Keep) ([]Removed, error) {
	parent := filepath.Join(output, scenario)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, fmt.Errorf("looking for old runs of %q: %w", scenario, err)
	}
	runs := each.Of(each.Where(entries, func(e os.DirEntry) bool { return e.IsDir() && isRun(e.Name()) }), os.DirEntry.Name)
	slices.SortFunc(runs, func(a, b string) int { return cmp.Compare(b, a) }) // newest first
	var total int64
	var removed []Removed
	var errs []error
	for i, name := range runs {
		dir := filepath.Join(parent, name)
		size, err := sizeOf(dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("measuring the run %s: %w", dir, err))
			continue
		}
		total += size
		if i == 0 || i < keep.Runs && total <= keep.Bytes {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, fmt.Errorf("removing the old run %s: %w", dir, err))
			continue
		}
		removed = append(removed, Removed{Dir: dir, Bytes: size})
	}
	return removed, errors.Join(errs...)
}

func isRun(name string) bool {
	_, err := time.Parse(runName, name[:min(len(name), len(runName))])
	return err == nil && (len(name) == len(runName) || name[len(runName)] == '-')
}

func sizeOf(dir string) (int64, error) {
	var size int64
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}
