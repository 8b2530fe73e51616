// Package releasefile reads the values of a Helm release from the files in which people keep them: the values alone, or
// an object of what installs the chart.
package releasefile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
	"helm.sh/helm/v4/pkg/strvals"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology/each"
)

// File is a file of a user.
type File struct {
	Name string // its path, if there are files beside it
	Text []byte
	// Tree has the texts of the file's repository: names of files may start at its root, and a reference to anything
	// outside goes into Told and is no error. Nil: the file is on this machine.
	Tree map[string]string
	// Find finds an object of the repository, and its file; nil: objects are in the file, or beside it.
	Find func(kind, name string) (object map[string]any, file string)
	// Origin is the address of the repository; empty if it is not known.
	Origin string
}

func (f File) read(name string) ([]byte, error) {
	if f.Tree == nil {
		return os.ReadFile(name)
	}
	text, there := f.Tree[name]
	if !there {
		return nil, fs.ErrNotExist
	}
	return []byte(text), nil
}

// Release is what a file says of a release.
type Release struct {
	Values map[string]any
	// Version is the chart's version, without a leading v; empty if the file states none.
	Version string
	// Object is the object with the values, such as "HelmRelease kube-system/cilium"; empty for a file of values.
	Object string
	// Told are sentences about what was not read, and about choices.
	Told []string
	// From are names of other files that have values.
	From []string
}

type reader struct {
	chart     string // the chart's name
	file      File
	vars      placeholder.Values
	documents []map[string]any
	Release
}

// Read finds the values for a chart in a file. The error is one sentence without the file's name.
func Read(chartName string, f File, vars placeholder.Values) (Release, error) {
	r := &reader{chart: chartName, file: f, vars: vars}
	if err := r.parse(); err != nil {
		return Release{}, err
	}
	if slices.ContainsFunc(r.documents, talos) {
		return Release{}, fmt.Errorf("it is a machine configuration of Talos, whose manifests are rendered charts, and none of their values: "+
			"expected the values of %s with which they were rendered", chartName)
	}
	found, err := r.choose()
	if err != nil {
		return Release{}, err
	}
	var all []map[string]any
	for _, c := range found {
		values, err := c.form.values(r, c.part)
		if err != nil {
			return Release{}, fmt.Errorf("%s: %w", c, err)
		}
		all = append(all, values)
		for _, path := range c.form.unread {
			if at(c.part, strings.Split(path, ".")...) != nil || at(c.document, path) != nil {
				r.Told = append(r.Told, fmt.Sprintf("%s: %s is not read: what it changes is not in the lab", c, path))
			}
		}
		for _, source := range slices.Concat(listAt(c.document, "spec", "sources"), listAt(c.document, "spec", "template", "spec", "sources")) {
			if path := text(source["path"]); path != "" && path != text(c.part["path"]) {
				r.Told = append(r.Told, fmt.Sprintf("%s: the source %s is not read: what it installs beside the chart is not in the lab", c, path))
			}
		}
		r.Version = cmp.Or(strings.TrimPrefix(text(c.form.version(r, c.part)), "v"), r.Version)
		r.Object = c.String()
	}
	r.Values = chart.Merge(all...)
	delete(r.Values, "sops") // its own data
	r.unwrap()
	if r.Version != "" && semver.Canonical("v"+r.Version) != "v"+r.Version {
		if r.file.Tree == nil {
			r.Told = append(r.Told, fmt.Sprintf("%s states no single version of the chart, but %s", r.Object, r.Version))
		}
		r.Version = ""
	}
	return r.Release, nil
}

func (r *reader) parse() error {
	body := r.file.Text
	// Without -o yaml, helm get values prints a line before the values.
	if first, rest, _ := bytes.Cut(body, []byte("\n")); bytes.HasPrefix(first, []byte("COMPUTED VALUES:")) {
		return errors.New("it has the chart's default values too: expected the output of helm get values without --all")
	} else if bytes.HasPrefix(first, []byte("USER-SUPPLIED VALUES:")) {
		body = rest
	}
	var err error
	r.documents, err = r.vars.Documents(body)
	return err
}

// talos reports whether a document is a machine configuration of Talos, or a patch of one with manifests.
func talos(d map[string]any) bool {
	return d["kind"] == nil && (mapAt(d, "machine") != nil && mapAt(d, "cluster") != nil ||
		at(d, "cluster", "inlineManifests") != nil || at(d, "cluster", "extraManifests") != nil)
}

type candidate struct {
	document, part map[string]any
	form           form
	// stated is the chart that the document states; empty if it states none.
	stated string
}

func (c candidate) String() string { return cmp.Or(c.form.title, describe(c.document)) }

func (r *reader) candidates() (objects, plain []candidate) {
	for _, d := range r.documents {
		ok := false
		for _, f := range forms {
			if f.kind != text(d["kind"]) {
				continue
			}
			parts := []map[string]any{mapAt(d, "spec")}
			if f.parts != nil {
				parts = f.parts(d)
			}
			for _, part := range parts {
				c := candidate{document: d, part: part, form: f}
				for _, key := range f.chart {
					c.stated = cmp.Or(c.stated, text(at(part, strings.Split(key, ".")...)))
				}
				if part != nil && (c.stated != "" || f.kind != "") {
					objects, ok = append(objects, c), true
				}
			}
		}
		if !ok && d["kind"] == nil {
			plain = append(plain, candidate{document: d, part: d, form: form{
				version: stated(""), values: func(_ *reader, d map[string]any) (map[string]any, error) { return d, nil },
			}})
		}
	}
	return objects, plain
}

// named reports whether a candidate is of the chart: by the chart that it states, or else by one of its names.
func (r *reader) named(c candidate) bool {
	if c.stated != "" {
		return r.namesChart(c.stated)
	}
	return r.namesChart(text(at(c.document, "metadata", "name"))) || slices.ContainsFunc(c.form.names, func(key string) bool {
		return r.namesChart(text(at(c.part, strings.Split(key, ".")...)))
	})
}

// choose returns the candidates whose values apply, the first one first.
func (r *reader) choose() ([]candidate, error) {
	objects, plain := r.candidates()
	found := slices.DeleteFunc(slices.Clone(objects), func(c candidate) bool { return !r.named(c) })
	if len(found) == 0 && len(objects) == 1 && objects[0].stated == "" {
		found = objects
	}
	// If an object takes its values from a ConfigMap, the ConfigMap is no candidate of its own.
	without := slices.DeleteFunc(slices.Clone(found), func(c candidate) bool { return c.form.kind == "ConfigMap" })
	if len(without) > 0 {
		found = without
	}
	// A HelmChart and the HelmChartConfig of its name are one release.
	slices.SortStableFunc(found, func(a, b candidate) int { return strings.Compare(a.form.kind, b.form.kind) })
	one := len(found) == 1 || len(found) == 2 && found[0].form.kind == "HelmChart" && found[1].form.kind == "HelmChartConfig"
	switch {
	case len(r.documents) == 0:
		return nil, nil // a file without any value
	case one && len(r.documents) > len(found):
		r.Told = append(r.Told, fmt.Sprintf("of %d documents that of the values is %s", len(r.documents), found[0]))
		return found, nil
	case one:
		return found, nil
	case len(found) > 1:
		return nil, fmt.Errorf("%s have values of %s: expected one of them",
			each.Joined(found, " and ", candidate.String), r.chart)
	case len(plain) == 1 && len(objects) == 0:
		return plain, nil
	case len(plain) > 1:
		return nil, fmt.Errorf("it has %d documents of values: expected one", len(plain))
	case len(objects) > 0:
		return nil, fmt.Errorf("%s installs %s: expected what installs %s, or its values", objects[0],
			cmp.Or(objects[0].stated, "another chart"), r.chart)
	}
	return nil, fmt.Errorf("it has no values but %s: expected values of %s, or an object with them "+
		"(HelmRelease, Application, HelmChart, HelmChartConfig, a kustomization with helmCharts)", r.described(), r.chart)
}

func (r *reader) described() string {
	names := each.Of(r.documents[:min(3, len(r.documents))], describe)
	if n := len(r.documents) - len(names); n > 0 {
		names = append(names, fmt.Sprintf("%d more", n))
	}
	return strings.Join(names, ", ")
}

// unwrap takes the chart's values out of the values of a chart that depends on it.
func (r *reader) unwrap() {
	inner, ok := r.Values[r.chart].(map[string]any)
	if !ok {
		return
	}
	beside := each.Where(slices.Sorted(maps.Keys(r.Values)), func(key string) bool { return key != r.chart && key != "global" })
	if len(beside) > 0 {
		r.Told = append(r.Told, fmt.Sprintf("the values are those under the key %s, as of a chart that depends on it; left out: %s", r.chart,
			strings.Join(beside, ", ")))
	}
	r.Values = inner
}

// namesChart reports whether a name, path or address names the chart. RKE2 packages cilium as rke2-cilium.
func (r *reader) namesChart(name string) bool {
	base, _, _ := strings.Cut(path.Base(strings.TrimSuffix(name, "/")), ":")
	base = strings.TrimPrefix(base, "rke2-")
	version := strings.TrimPrefix(base, r.chart+"-") // cilium-1.18.4.tgz
	return base == r.chart || version != base && strings.HasSuffix(base, ".tgz")
}

func describe(d map[string]any) string {
	name := text(at(d, "metadata", "name"))
	if namespace := text(at(d, "metadata", "namespace")); namespace != "" {
		name = namespace + "/" + name
	}
	return strings.TrimSpace(text(d["kind"]) + " " + name)
}

func at(d map[string]any, keys ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(d, keys...)
	return value
}

func mapAt(d map[string]any, keys ...string) map[string]any {
	m, _ := at(d, keys...).(map[string]any)
	return m
}

func listAt(d map[string]any, keys ...string) []map[string]any {
	items, _ := at(d, keys...).([]any)
	return each.As[map[string]any](items)
}

func text(value any) string {
	switch value := value.(type) {
	case string:
		return value
	case json.Number, bool, float64, int64:
		return fmt.Sprint(value)
	}
	return ""
}

func (r *reader) inner(value any) (map[string]any, error) {
	if value, ok := value.(map[string]any); ok {
		return value, nil
	}
	return r.vars.Map([]byte(text(value)))
}

func set(values map[string]any, name, value string, isText bool) error {
	parse := strvals.ParseInto
	if isText {
		parse = strvals.ParseIntoString
	}
	value = strings.NewReplacer(`\`, `\\`, ",", `\,`).Replace(value)
	if err := parse(name+"="+value, values); err != nil {
		return fmt.Errorf("the value %s: %w", name, err)
	}
	return nil
}

// path finds a file that an object names: relative to the object's file, or beside it; empty if it is not there.
func (r *reader) path(name string) string {
	inSource := strings.HasPrefix(name, "$")
	if inSource { // another source of Argo CD: $ref/path
		ref, path, _ := strings.Cut(name[1:], "/")
		if r.file.Tree != nil && slices.ContainsFunc(r.documents, func(d map[string]any) bool { return elsewhere(d, ref, r.file.Origin) }) {
			return ""
		}
		name = path
	}
	dir := filepath.Dir(r.file.Name)
	paths := []string{filepath.Join(dir, filepath.FromSlash(name)), filepath.Join(dir, path.Base(name))}
	if r.file.Tree != nil {
		paths = []string{path.Join(dir, name)}
		if inSource || strings.HasPrefix(name, "/") {
			paths = []string{path.Clean(strings.TrimPrefix(name, "/"))}
		}
	}
	for _, at := range paths {
		if _, there := r.file.Tree[at]; there {
			return at
		}
		if info, err := os.Stat(at); r.file.Tree == nil && err == nil && info.Mode().IsRegular() {
			return at
		}
	}
	return ""
}

// elsewhere reports whether an Application, or an ApplicationSet, has a source of another repository.
func elsewhere(d map[string]any, ref, origin string) bool {
	named := func(address string) string {
		parts := strings.FieldsFunc(strings.TrimSuffix(address, ".git"), func(r rune) bool { return strings.ContainsRune("/:@", r) })
		return strings.Join(parts[max(0, len(parts)-2):], "/")
	}
	return slices.ContainsFunc(slices.Concat(listAt(d, "spec", "sources"), listAt(d, "spec", "template", "spec", "sources")),
		func(source map[string]any) bool {
			return text(source["ref"]) == ref && named(text(source["repoURL"])) != named(origin)
		})
}

func (r *reader) beside(name string) (map[string]any, error) {
	at := r.path(name)
	if at == "" && r.file.Tree != nil {
		r.Told = append(r.Told, fmt.Sprintf("the values of %s are not read: it is not in this repository", name))
		return nil, nil
	}
	if at == "" {
		return nil, fmt.Errorf("it takes values from the file %s, which was not found: expected it beside %s", name, r.file.Name)
	}
	r.From = append(r.From, at)
	body, err := r.file.read(at)
	if err != nil {
		return nil, err
	}
	values, err := r.vars.Map(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return values, nil
}

// Given are values as a user's files have them.
type Given struct {
	// Sources are the files, the first one first, with the object of each that has the values.
	Sources []string
	// Version is the chart's version, if a file states it.
	Version string
	// Told are sentences about what was not read.
	Told   []string
	Values map[string]any
}

// ReadAll finds the values of a component's chart in files, with values for their variables.
func ReadAll(component string, vars placeholder.Values, files ...File) (Given, error) {
	var g Given
	var all []map[string]any
	for _, f := range files {
		r, err := Read(component, f, vars)
		if err != nil {
			return Given{}, fmt.Errorf("%s: %w", f.Name, err)
		}
		source := f.Name
		if r.Object != "" {
			source += " (" + r.Object + ")"
		}
		g.Sources, all = append(g.Sources, source), append(all, r.Values)
		g.Version = cmp.Or(r.Version, g.Version)
		g.Told = append(g.Told, each.Of(r.Told, func(says string) string { return f.Name + ": " + says })...)
	}
	g.Values = chart.Merge(all...)
	return g, nil
}
