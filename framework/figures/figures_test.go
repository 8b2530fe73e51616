package figures_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/figures"
	"github.com/relapse-dev/relapse/topology/must"
)

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		name    string
		samples []float64
		median  float64
	}{
		{name: "one sample is all three", samples: []float64{3}, median: 3},
		{name: "odd number", samples: []float64{9, 3, 4}, median: 4},
		{name: "even number: between the two in the middle", samples: []float64{9, 3, 6, 4}, median: 5},
	} {
		want := figures.Spread{Min: 3, Median: c.median, Max: slices.Max(c.samples), N: len(c.samples)}
		must.Equal(t, c.name, want, figures.Summarize(c.samples))
	}
}

func TestUpdate(t *testing.T) {
	named := func(scenario, name string, seconds float64) figures.Figure {
		return figures.Figure{Scenario: scenario, Name: name, Measured: figures.Summarize([]float64{seconds}), Unit: "s"}
	}
	before := figures.File{Machine: "small", Figures: []figures.Figure{named("a", "lab", 1), named("b", "lab", 2), named("", "make test", 3)}}
	for _, c := range []struct {
		name, machine string
		measured      []figures.Figure
		want          []figures.Figure
	}{
		{name: "a figure is replaced", machine: "small", measured: []figures.Figure{named("a", "lab", 9)},
			want: []figures.Figure{named("", "make test", 3), named("a", "lab", 9), named("b", "lab", 2)}},
		{
			name: "a new figure stands behind those of its scenario", machine: "small",
			measured: []figures.Figure{named("a", "all variants", 9)},
			want:     []figures.Figure{named("", "make test", 3), named("a", "lab", 1), named("a", "all variants", 9), named("b", "lab", 2)},
		},
		{name: "figures of another machine go", machine: "big", measured: []figures.Figure{named("a", "lab", 9)},
			want: []figures.Figure{named("a", "lab", 9)}},
	} {
		must.Equal(t, c.name, figures.File{Machine: c.machine, Figures: c.want}, before.Update(c.machine, c.measured...))
	}
}

func TestWriteAndRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "figures.json")
	must.Equal(t, "where there is no file there are no figures", figures.File{}, must.Get(figures.Read(path))(t))
	file := figures.File{Machine: "small", Figures: []figures.Figure{
		{Scenario: "a", Name: "lab", Date: "2026-01-31", Measured: figures.Summarize([]float64{1, 2}), Budget: new(2.0), Unit: "s"},
	}}
	must.NoError(t, file.Write(path))
	must.Equal(t, "read again", file, must.Get(figures.Read(path))(t))
}

func TestUsually(t *testing.T) {
	file := figures.File{Figures: []figures.Figure{
		{Scenario: "a", Name: figures.LabIsUp, Measured: figures.Summarize([]float64{1}), Unit: "s"},
		{Scenario: "a", Name: figures.AllVariants, Measured: figures.Summarize([]float64{200, 220}), Unit: "s"},
		{Scenario: "b", Name: figures.AllVariants, Measured: figures.Summarize([]float64{1, 2, 9}), Unit: "s"},
	}}
	for scenario, want := range map[string]time.Duration{"a": 210 * time.Second, "b": 2 * time.Second, "c": 0} {
		usual, found := file.Usually(scenario)
		must.Equal(t, scenario, []any{want, want > 0}, []any{usual, found})
	}
	_, found := must.Get(figures.Recorded())(t).Usually("node-drain")
	must.Equal(t, "known: whoever renames the figure loses what was measured", true, found)
}
