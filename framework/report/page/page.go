// Package page renders stored runs as HTML: report.html beside each report.json, and an
// index of several runs. A page is one file that loads nothing and can be read without
// JavaScript. Its only source is the run's folder, so the page of an old run can be
// rendered again, without what an older report does not have.
//
// Everything in it that comes from a lab goes through html/template.
package page

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/relapse-dev/relapse/framework/history"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/topology/each"
)

// Name is the page's file, beside report.json.
const Name = "report.html"

var (
	//go:embed page.gohtml
	pageText string
	//go:embed style.css
	style string
	//go:embed script.js
	script string

	functions = template.FuncMap{
		"style":    Style,
		"script":   func() template.JS { return template.JS(script) },
		"seconds":  report.SpanMS,
		"title":    report.Variant.Title,
		"join":     strings.Join,
		"bytes":    func(n int64) string { return units.HumanSize(float64(n)) },
		"clock":    func(t time.Time) string { return t.UTC().Format("15:04:05.000") },
		"date":     func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
		"percent":  func(f float64) string { return fmt.Sprintf("%.0f%%", 100*f) },
		"upper":    strings.ToUpper,
		"sign":     sign,
		"versions": versions,
		"came":     came,
		"repeats":  repeats,
		// Records are wrapped for terminals.
		"paragraphs": func(s string) []string { return strings.Split(strings.TrimSpace(s), "\n\n") },
	}
	pageTemplate = template.Must(template.New("page").Funcs(functions).Parse(pageText))
)

// Style is the style of the pages, for other pages that are read beside them.
func Style() template.CSS { return template.CSS(style) }

type view struct {
	report.Report
	Machine  []pair
	Built    []built
	Main     *section  // the variant of the first screen
	Sections []section // all of them, the main one first
	Issue    string    // Markdown
	Unread   []string
}

type pair struct{ Name, Value string }

type section struct {
	stored
	ID       string
	Lead     lead
	Ranked   []report.Remedy
	Topology *report.Topology
	Paths    []journey // of the lost packets
	More     int       // paths that are left out
	Axis     *axis
	Tables   []table
	Evidence []file
	Others   []section // of the main section
}

const maxPaths = 4

// Write renders dir/report.html from dir/report.json and the evidence that it names. live are
// the histories of a run of this process, by their folders of evidence; the others are read.
func Write(dir string, live map[string]*history.History) (err error) {
	// The stored files may hold anything. A run that is still going on must not end
	// because its page cannot be rendered.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("rendering the page of %s: %v", dir, p)
		}
	}()
	r, err := report.Read(filepath.Join(dir, "report.json"))
	if err != nil {
		return err
	}
	text, err := render(dir, r, live)
	if err != nil {
		return fmt.Errorf("rendering the page of %s: %w", dir, err)
	}
	if err := rundir.Replace(filepath.Join(dir, Name), text); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

func render(dir string, r report.Report, live map[string]*history.History) ([]byte, error) {
	v := view{Report: r, Machine: machine(r), Built: builtOf(r)}
	var variants []stored
	for _, one := range r.Variants {
		s, unread := load(dir, one, live[one.EvidenceDir])
		variants, v.Unread = append(variants, s), append(v.Unread, unread...)
	}
	first := mainOf(variants)
	for i, s := range variants {
		id := fmt.Sprintf("v%d", i+1)
		t := newTracing(r.TopologyOf(s.Variant), s)
		one := section{
			stored: s, ID: id, Lead: newLead(s, t), Ranked: s.ranked(), Topology: t.topology, Paths: t.journeys(), Axis: newAxis(id, s),
			Tables: tables(s), Evidence: s.files,
		}
		one.More = max(0, len(one.Paths)-maxPaths)
		one.Paths = one.Paths[:len(one.Paths)-one.More]
		if i == first {
			v.Sections = slices.Insert(v.Sections, 0, one)
		} else {
			v.Sections = append(v.Sections, one)
		}
	}
	if len(v.Sections) > 0 {
		v.Main = &v.Sections[0]
		v.Main.Others = v.Sections[1:]
	}
	v.Issue = issue(v)
	var text bytes.Buffer
	if err := pageTemplate.Execute(&text, v); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// mainOf is the variant that the first screen is about: the first that is not as
// expected, else the first with impacted probes, else the first.
func mainOf(variants []stored) int {
	for _, matches := range []func(stored) bool{
		func(s stored) bool { return s.Verdict != s.Expected || len(s.Reasons) > 0 },
		func(s stored) bool { return len(s.ProbesHurt) > 0 },
	} {
		if i := slices.IndexFunc(variants, matches); i >= 0 {
			return i
		}
	}
	return 0
}

func machine(r report.Report) []pair {
	facts, _ := r.Machine.(map[string]any)
	var all []pair
	for _, name := range []string{"kernel", "cpus", "memory_gib", "docker"} {
		if value, there := facts[name]; there {
			all = append(all, pair{strings.ReplaceAll(name, "_gib", ", GiB"), fmt.Sprint(value)})
		}
	}
	if r.CPU != nil {
		all = append(all, pair{"CPUs while the lab was up", fmt.Sprintf("lab %.0f%%, all else %.0f%%", 100*r.CPU.Lab, 100*r.CPU.Others)})
	}
	for _, g := range r.Guests {
		all = append(all, pair{"kernel of " + g.Node, g.Kernel + " (" + g.Accelerator + ")"})
	}
	return all
}

type built struct {
	report.Module
	Images []string
}

func builtOf(r report.Report) []built {
	var all []built
	for _, m := range r.Modules {
		i := slices.IndexFunc(all, func(b built) bool { return b.Path == m.Path && b.Version == m.Version && b.Sum == m.Sum })
		if i < 0 {
			all, i = append(all, built{Module: m}), len(all)
		}
		all[i].Images = append(all[i].Images, m.Image)
	}
	return all
}

// sign is shown beside a verdict, for readers who do not see its colour.
func sign(verdict string) string {
	switch verdict {
	case "pass", "reproduced", "prevented", "refused", "recovers":
		return "✔"
	case "fail", "missed":
		return "✘"
	case "does-not-help", "observed": // no failure: mostly as documented, or not judged
		return "–"
	case "":
		return "…"
	}
	return "?"
}

func versions(components map[string]string) string {
	return each.Joined(slices.Sorted(maps.Keys(components)), ", ", func(name string) string { return name + " " + components[name] })
}

func came(f report.Finding) string {
	switch {
	case f.CameMS == nil:
		return "before the fault"
	case f.During != "fault":
		return fmt.Sprintf("%s into %q", report.SpanMS(*f.CameMS), f.During)
	case f.TimeToDetectMS != nil:
		return fmt.Sprintf("%s into the fault, %s after the first loss", report.SpanMS(*f.CameMS), report.SpanMS(*f.TimeToDetectMS))
	}
	return report.SpanMS(*f.CameMS) + " into the fault"
}
