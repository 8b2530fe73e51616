package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/onsi/gomega"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/must"
)

const root = "../.."

func TestDocumentsAreRendered(t *testing.T) {
	paths := must.Get(documents(root))(t)
	names := map[string]bool{}
	for _, path := range paths {
		text := string(must.Read(t, path))
		renewed, err := replace(text, func(name string) (string, error) {
			names[name] = true
			return render(root, name)
		})
		must.Equal(t, path, nil, err)
		must.Equal(t, path+" is stale; go generate ./cmd/readme renews it", renewed, text)
	}
	for _, name := range []string{"incidents", "drawing node-drain", "records", "components", "figures"} {
		must.Equal(t, "a document has the block "+name, true, names[name])
	}
}

// TestTranscripts fails for a transcript that is written by hand: a code block with a prompt that is not rendered.
func TestTranscripts(t *testing.T) {
	for _, path := range must.Get(documents(root))(t) {
		for i, line := range strings.Split(string(must.Read(t, path)), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "$ ") || strings.HasPrefix(line, "```console") {
				t.Errorf("%s:%d: a transcript that is not rendered from a golden file: %s", path, i+1, line)
			}
		}
	}
}

// TestREADMEIsShort: without its row for each incident, the README has two screens at most, and names two commands.
func TestREADMEIsShort(t *testing.T) {
	text := string(must.Read(t, root+"/README.md"))
	if lines := strings.Count(text, "\n"); lines > 165+len(scenarios.All) {
		t.Errorf("README.md has %d lines; 165 and one for each incident at most: the rest belongs into the README.md of its folder", lines)
	}
	must.Contain(t, text, "make scenario NAME=node-drain", "make test")
}

func TestReplace(t *testing.T) {
	const begin, end = "<!-- rendered by go generate ./cmd/readme: figures -->\n", "<!-- end of figures -->\n"
	fresh := func(name string) (string, error) {
		if name != "figures" {
			return "", errors.New("there is no such block")
		}
		return "new\n", nil
	}
	for _, c := range []struct {
		name, text, want, err string
	}{
		{name: "no block", text: "a\n", want: "a\n"},
		{name: "between its comments", text: "a\n" + begin + "old\n" + end + "b\n", want: "a\n" + begin + "\nnew\n\n" + end + "b\n"},
		{name: "an empty block", text: begin + end, want: begin + "\nnew\n\n" + end},
		{name: "two blocks", text: begin + end + begin + end, want: begin + "\nnew\n\n" + end + begin + "\nnew\n\n" + end},
		{name: "no end", text: begin + "old\n", err: `block "figures" has no end`},
		{name: "unknown", text: strings.ReplaceAll(begin+end, "figures", "prices"), err: `block "prices": there is no such block`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			got, err := replace(c.text, fresh)
			if c.err != "" {
				g.Expect(err).To(gomega.MatchError(gomega.ContainSubstring(c.err)))
				return
			}
			g.Expect(got, err).To(gomega.Equal(c.want))
		})
	}
}

func TestRecords(t *testing.T) {
	got := records([]framework.Scenario{{Incident: framework.Incident{
		Name: "flood", Title: "water in the rack", Source: "a_cellar", Issue: "https://example.com/1",
		Symptom: "Cables\nfloat.\n\n  1. <red>\n  2. blue\n\nFans *stop*.", Cause: "A valve.", Affected: "1.0", Fixed: "1.1",
		Remedies: []string{"close it", "a towel does not help"}, Reproduction: "A bucket.", Diagram: "  ~~\n rack",
	}}})
	want := "### flood\n\n**water in the rack**\n\n```text\n  ~~\n rack\n```\n\n" +
		"**Symptom.** Cables\nfloat.\n\n```text\n  1. <red>\n  2. blue\n```\n\nFans \\*stop\\*.\n\n" +
		"**Cause.** A valve.\n\n**Reproduction.** A bucket.\n\n**Remedies.**\n\n- close it\n- a towel does not help\n\n" +
		"**Affected**: 1.0. **Fixed**: 1.1. **Source**: a\\_cellar. **The vendor's issue or fix**: <https://example.com/1>.\n" +
		"\n| variant | role | expected verdict | components | runs as |\n|---|---|---|---|---|\n"
	must.Equal(t, "", want, got)
}
