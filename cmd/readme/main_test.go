package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/onsi/gomega"

	"github.com/relapse-dev/relapse/cmd/bench/figures"
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/topology"
)

const root = "../.."

func TestREADMEIsRendered(t *testing.T) {
	text, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	all, err := tables(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, rendered := range all {
		t.Run(rendered.name, func(t *testing.T) {
			renewed, err := replace(string(text), []table{rendered})
			if err != nil {
				t.Fatal(err)
			}
			if renewed == string(text) {
				return
			}
			stale, want := firstDifference(string(text), renewed)
			t.Errorf("README.md: the table %q is stale; go generate ./cmd/readme renews it.\n  it has: %s\n  should: %s", rendered.name, stale, want)
		})
	}
}

// links are the targets of Markdown's inline links.
var links = regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	for _, name := range []string{"README.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(link[1], "://") {
				continue // another site's
			}
			if _, err := os.Stat(filepath.Join(root, link[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", name, link[1])
			}
		}
	}
}

// firstDifference returns the first line of each of two texts in which they
// differ.
func firstDifference(a, b string) (string, string) {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] {
			return as[i], bs[i]
		}
	}
	return "(the end)", "(the end)"
}

func TestReplace(t *testing.T) {
	rendered := []table{{name: "figures", text: "new\n"}}
	const begin, end = "<!-- figures: rendered by go generate ./cmd/readme -->\n", "<!-- end of figures -->\n"
	for _, c := range []struct {
		name, text, want, err string
	}{
		{name: "between its comments", text: "a\n" + begin + "old\n" + end + "b\n", want: "a\n" + begin + "\nnew\n\n" + end + "b\n"},
		{name: "an empty place", text: begin + end, want: begin + "\nnew\n\n" + end},
		{name: "no place", text: "a\n", err: `the table "figures" has no place`},
		{name: "no end", text: begin + "old\n", err: `the table "figures" has no place`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			got, err := replace(c.text, rendered)
			if c.err != "" {
				g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(c.err)))
				return
			}
			g.Expect(err).NotTo(gomega.HaveOccurred())
			g.Expect(got).To(gomega.Equal(c.want))
		})
	}
}

func TestIncidents(t *testing.T) {
	s := framework.Scenario{
		Incident: framework.Incident{Name: "a", Title: "it broke", Affected: "1.0 | 1.1", Fixed: "1.2"},
		Topology: topology.Topology{Clusters: []topology.Cluster{{Nodes: []topology.Node{{Kernel: "6.1"}, {Kernel: "6.1"}, {}}}}},
		Variants: []framework.Variant{
			{Name: "new", Role: framework.Fixed, Components: map[string]string{"proxy": "1.2"}},
			{Name: "old", Role: framework.Affected, Components: map[string]string{"proxy": "1.1", "db": "10"}},
			{Name: "older", Role: framework.Affected, Components: map[string]string{"proxy": "1.0"}, OnlyUpstream: "it is not published"},
			{Name: "half", Role: framework.Workaround, Components: map[string]string{"proxy": "1.1"}, Refused: true},
		},
	}
	want := "| name | what happened | affected | fixed | variants | versions that run |\n|---|---|---|---|---|---|\n" +
		"| a | it broke | 1.0 \\| 1.1 | 1.2 | affected: `old`, `older` (only with `--images=upstream`); fixed: `new`; workaround: `half` (refuses to start); on a node with a kernel of its own, 6.1 | db: 10; proxy: 1.2, 1.1 |\n"
	gomega.NewWithT(t).Expect(incidents([]framework.Scenario{s})).To(gomega.Equal(want))
}

func TestMeasured(t *testing.T) {
	seconds := func(samples ...float64) figures.Figure {
		return figures.Figure{Measured: figures.Summarize(samples), Unit: "s"}
	}
	for _, c := range []struct {
		name   string
		figure figures.Figure
		want   string
	}{
		{name: "one sample", figure: seconds(67), want: "67 s"},
		{name: "several", figure: seconds(105, 125, 110.4), want: "105 to 125 s, median 110 s (3 samples)"},
		{name: "no median was written down", figure: figures.Figure{Measured: figures.Spread{Min: 21.8, Max: 27.4}, Unit: "s"}, want: "21.8 to 27.4 s"},
		{name: "minutes", figure: seconds(3120, 3180), want: "52 to 53 min, median 52.5 min (2 samples)"},
		{name: "two units", figure: seconds(0.006, 5.5), want: "6 ms to 5.5 s, median 2.75 s (2 samples)"},
		{name: "a note", figure: figures.Figure{Unit: "packets", Note: "of 65,588 sent"}, want: "0 packets; of 65,588 sent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gomega.NewWithT(t).Expect(measured(c.figure)).To(gomega.Equal(c.want))
		})
	}
}

func TestBudget(t *testing.T) {
	limit := 150.0
	for _, c := range []struct {
		name   string
		figure figures.Figure
		want   string
	}{
		{name: "none", figure: figures.Figure{Unit: "s", Measured: figures.Spread{Max: 200}}, want: ""},
		{name: "kept", figure: figures.Figure{Unit: "s", Budget: &limit, Measured: figures.Spread{Max: 150}}, want: "150 s"},
		{name: "not kept", figure: figures.Figure{Unit: "s", Budget: &limit, Measured: figures.Spread{Max: 151}}, want: "150 s, **over**"},
	} {
		t.Run(c.name, func(t *testing.T) {
			gomega.NewWithT(t).Expect(budget(c.figure)).To(gomega.Equal(c.want))
		})
	}
}
