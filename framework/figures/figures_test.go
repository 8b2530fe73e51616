package figures_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/relapse-dev/relapse/framework/figures"
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
		t.Run(c.name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			spread := figures.Summarize(c.samples)
			g.Expect(spread.Median).To(gomega.Equal(c.median))
			g.Expect(spread.Min).To(gomega.Equal(3.0))
			g.Expect(spread.N).To(gomega.Equal(len(c.samples)))
		})
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
		t.Run(c.name, func(t *testing.T) {
			after := before.Update(c.machine, c.measured...)
			gomega.NewWithT(t).Expect(after).To(gomega.Equal(figures.File{Machine: c.machine, Figures: c.want}))
		})
	}
}

func TestWriteAndRead(t *testing.T) {
	g := gomega.NewWithT(t)
	path := filepath.Join(t.TempDir(), "figures.json")
	none, err := figures.Read(path)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(none).To(gomega.Equal(figures.File{}), "where there is no file there are no figures")

	budget := 2.0
	file := figures.File{Machine: "small", Figures: []figures.Figure{
		{Scenario: "a", Name: "lab", Date: "2026-01-31", Measured: figures.Summarize([]float64{1, 2}), Budget: &budget, Unit: "s"},
	}}
	g.Expect(file.Write(path)).To(gomega.Succeed())
	again, err := figures.Read(path)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(again).To(gomega.Equal(file))
}

func TestUsually(t *testing.T) {
	g := gomega.NewWithT(t)
	file := figures.File{Figures: []figures.Figure{
		{Scenario: "a", Name: figures.LabIsUp, Measured: figures.Summarize([]float64{1}), Unit: "s"},
		{Scenario: "a", Name: figures.AllVariants, Measured: figures.Summarize([]float64{200, 220}), Unit: "s"},
		{Scenario: "b", Name: figures.AllVariants, Measured: figures.Summarize([]float64{1, 2, 9}), Unit: "s"},
	}}
	for scenario, want := range map[string]time.Duration{"a": 210 * time.Second, "b": 2 * time.Second, "c": 0} {
		usual, known := file.Usually(scenario)
		g.Expect(usual).To(gomega.Equal(want), scenario)
		g.Expect(known).To(gomega.Equal(want > 0), scenario)
	}
	recorded, err := figures.Recorded()
	g.Expect(err).NotTo(gomega.HaveOccurred())
	_, known := recorded.Usually("node-drain")
	g.Expect(known).To(gomega.BeTrue(), "whoever renames the figure loses what was measured")
}
