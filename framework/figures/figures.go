// Package figures has the measured times and memory. cmd/readme takes them from stored runs and renders
// their table in README.md. The CLI takes the usual duration of a scenario from them.
package figures

import (
	"bytes"
	"cmp"
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
const Path = "framework/figures/figures.json"

// Names of the figures for the duration of a scenario, in seconds and without building images.
const (
	AllVariants = "all variants" // on a lab of their own, which comes and goes
	LabIsUp     = "lab is up"
)

//go:embed figures.json
var recorded []byte

// Recorded are the figures that this program was built with.
func Recorded() (File, error) { return parse(Path, recorded) }

// Usually is the median of how long a scenario takes, with all its variants and its images built.
// found is false if it was not measured.
func (file File) Usually(scenario string) (lasts time.Duration, found bool) {
	for _, f := range file.Figures {
		if f.Scenario == scenario && f.Name == AllVariants {
			return time.Duration(f.Measured.Median * float64(time.Second)), true
		}
	}
	return 0, false
}

// File is all figures of one machine. It has no second machine, because figures of two
// machines cannot be compared.
type File struct {
	// Machine describes the machine in a few words.
	Machine string   `json:"machine"`
	Figures []Figure `json:"figures"`
}

// Figure is one measured quantity.
type Figure struct {
	// Scenario is the name of the incident that was run; empty if the figure is of no single one.
	Scenario string `json:"scenario,omitempty"`
	// Name says what was measured. It is unique within its scenario.
	Name string `json:"figure"`
	// Date is the day of the last sample, as in 2026-01-31.
	Date     string `json:"date"`
	Measured Spread `json:"measured"`
	// Budget is the largest value allowed; nil if there is none.
	Budget *float64 `json:"budget,omitempty"`
	// Unit is the unit of Measured and Budget: s (seconds), MiB or packets.
	Unit string `json:"unit"`
	// Note names the conditions, where they differ from those of the other figures.
	Note string `json:"note,omitempty"`
}

// Spread summarizes samples.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
	// N is the number of samples; zero if it was not recorded.
	N int `json:"n,omitempty"`
}

// Summarize returns the spread of samples. There must be at least one.
func Summarize(samples []float64) Spread {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	return Spread{Min: sorted[0], Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Max: sorted[n-1], N: n}
}

// OverBudget says whether any sample was above the budget.
func (f Figure) OverBudget() bool { return f.Budget != nil && f.Measured.Max > *f.Budget }

// Read reads the file at path. If there is none, it returns an empty File.
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

// Update returns the file with newly measured figures in place of those of the same
// scenario and name. Other figures are kept, unless they are of another machine.
func (file File) Update(machine string, measured ...Figure) File {
	updated := File{Machine: machine}
	for _, f := range file.Figures {
		again := slices.ContainsFunc(measured, func(m Figure) bool { return m.Scenario == f.Scenario && m.Name == f.Name })
		if file.Machine == machine && !again {
			updated.Figures = append(updated.Figures, f)
		}
	}
	updated.Figures = append(updated.Figures, measured...)
	slices.SortStableFunc(updated.Figures, func(a, b Figure) int { return cmp.Compare(a.Scenario, b.Scenario) })
	return updated
}
