// Package figures is the file that holds what relapse was measured to take:
// cmd/bench writes it, the README's table of figures is rendered from it, and the
// CLI takes from it how long scenarios usually last.
package figures

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Path is where the file is, from the root of the repository.
const Path = "cmd/bench/figures/figures.json"

// Names of the figures that say how long a scenario lasts, in seconds and without
// the building of images.
const (
	AllVariants = "all variants" // on a lab of their own, which comes and goes
	LabIsUp     = "lab is up"
)

// OnThatLab names the figure of how long a variant lasts on a lab that is up.
func OnThatLab(variant string) string { return variant + " on that lab, from installation to verdict" }

//go:embed figures.json
var recorded []byte

// Recorded are the figures that this program was built with.
func Recorded() (File, error) { return parse(Path, recorded) }

// Duration is how long something of a scenario usually lasts, by the name of its
// figure: the median, or the middle of the range where only that was written down.
// Known is false where nobody has measured it.
func (file File) Duration(scenario, name string) (usual time.Duration, known bool) {
	for _, f := range file.Figures {
		if f.Scenario != scenario || f.Name != name || f.Unit != "s" {
			continue
		}
		seconds := (f.Measured.Min + f.Measured.Max) / 2
		if f.Measured.Median != nil {
			seconds = *f.Measured.Median
		}
		return time.Duration(seconds * float64(time.Second)), true
	}
	return 0, false
}

// File is all figures of one machine. Figures of two machines do not compare,
// so that there is no place for a second one.
type File struct {
	// Machine says in a few words what was measured on.
	Machine string   `json:"machine"`
	Figures []Figure `json:"figures"`
}

// Figure is one thing that was measured.
type Figure struct {
	// Scenario is the name of the incident that was run; empty for what does not
	// belong to one.
	Scenario string `json:"scenario,omitempty"`
	// Name says what was measured. It is unique within its scenario.
	Name string `json:"figure"`
	// Date is the day of the last sample, as in 2026-01-31.
	Date     string `json:"date"`
	Measured Spread `json:"measured"`
	// Budget is the most that it may be; nil where there is none.
	Budget *float64 `json:"budget,omitempty"`
	// Unit is that of Measured and Budget: s (seconds), MiB or packets.
	Unit string `json:"unit"`
	// Note says under which conditions, if not under those of the other figures.
	Note string `json:"note,omitempty"`
}

// Spread is what several samples came to.
type Spread struct {
	Min float64 `json:"min"`
	// Median is absent where only the ends of the range were written down.
	Median *float64 `json:"median,omitempty"`
	Max    float64  `json:"max"`
	// N is the number of samples; zero where it was not written down.
	N int `json:"n,omitempty"`
}

// Summarize returns the spread of samples, of which there is one at least.
func Summarize(samples []float64) Spread {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	median := (sorted[(n-1)/2] + sorted[n/2]) / 2
	return Spread{Min: sorted[0], Median: &median, Max: sorted[n-1], N: n}
}

// OverBudget says whether any sample was above the budget.
func (f Figure) OverBudget() bool { return f.Budget != nil && f.Measured.Max > *f.Budget }

// Read reads the file at path. Where there is none it returns an empty File.
func Read(path string) (File, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return File{}, nil
	}
	if err != nil {
		return File{}, fmt.Errorf("reading the figures: %w", err)
	}
	return parse(path, text)
}

func parse(path string, text []byte) (File, error) {
	var file File
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		return File{}, fmt.Errorf("reading the figures in %s: %w", path, err)
	}
	return file, nil
}

// Write stores the file at path.
func (file File) Write(path string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // people read it too
	if err := encoder.Encode(file); err != nil {
		return fmt.Errorf("encoding the figures: %w", err)
	}
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	return nil
}

// Update returns the file with newly measured figures in place of those of the
// same scenario and name, and the others as they were. Figures of another
// machine are dropped. New ones stand behind the last one of their scenario.
func (file File) Update(machine string, measured ...Figure) File {
	updated := File{Machine: machine}
	if file.Machine == machine {
		updated.Figures = slices.Clone(file.Figures)
	}
	for _, figure := range measured {
		same := slices.IndexFunc(updated.Figures, func(f Figure) bool {
			return f.Scenario == figure.Scenario && f.Name == figure.Name
		})
		if same >= 0 {
			updated.Figures[same] = figure
			continue
		}
		behind := len(updated.Figures)
		for i, f := range updated.Figures {
			if f.Scenario == figure.Scenario {
				behind = i + 1
			}
		}
		updated.Figures = slices.Insert(updated.Figures, behind, figure)
	}
	return updated
}
