package releasefile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/topology/each"
)

type form struct {
	kind  string // empty: a file without a kind, which title describes
	title string
	// parts returns the parts of a document that install one chart each; nil: its spec is the only part.
	parts func(document map[string]any) []map[string]any
	// chart are the paths in a part of its chart's name, path or address, and names are paths to guess the chart from.
	chart, names []string
	version      func(r *reader, part map[string]any) any
	values       func(r *reader, part map[string]any) (map[string]any, error)
	// unread are paths in a part, or keys of its document, that change the installation besides the values.
	unread []string
}

var forms = []form{
	{
		kind: "HelmRelease", chart: []string{"chart.spec.chart"}, names: []string{"chartRef.name", "releaseName"}, // Flux
		version: (*reader).fluxVersion, values: (*reader).fluxValues, unread: []string{"postRenderers", "chart.spec.valuesFiles",
			"chart.spec.valuesFile"},
	},
	{
		kind: "Application", chart: []string{"chart"}, names: []string{"path"}, // Argo CD
		parts: sources, version: stated("targetRevision"), values: (*reader).argoValues,
	},
	{
		kind: "ApplicationSet", chart: []string{"chart"}, names: []string{"path"},
		parts:   func(d map[string]any) []map[string]any { return sources(mapAt(d, "spec", "template")) },
		version: stated("targetRevision"), values: (*reader).argoValues,
	},
	{kind: "HelmChart", chart: []string{"chart"}, version: stated("version"), values: (*reader).rancherValues}, // k3s, RKE2
	{kind: "HelmChartConfig", version: stated(""), values: (*reader).rancherValues},
	{ // Cluster API
		kind: "HelmChartProxy", chart: []string{"chartName"}, version: stated("version"),
		values: func(r *reader, spec map[string]any) (map[string]any, error) { return r.inner(spec["valuesTemplate"]) },
	},
	{
		kind: "ConfigMap", version: stated(""),
		parts: func(d map[string]any) []map[string]any {
			if at(d, "data", valuesKey) == nil {
				return nil
			}
			return []map[string]any{d}
		},
		values: func(r *reader, d map[string]any) (map[string]any, error) { return r.inner(at(d, "data", valuesKey)) },
	},
	{kind: "Kustomization", parts: listOf("helmCharts"), chart: []string{"name"}, version: stated("version"),
		values: (*reader).kustomizeValues, unread: patches},
	{title: "kustomization", parts: listOf("helmCharts"), chart: []string{"name"}, version: stated("version"),
		values: (*reader).kustomizeValues, unread: patches},
	{title: "helmfile", parts: listOf("releases"), chart: []string{"chart"}, version: stated("version"), values: (*reader).helmfileValues,
		unread: []string{
			"inherit", "valuesTemplate", "jsonPatches", "strategicMergePatches", "transformers",
		}},
	{
		title: "fleet.yaml", chart: []string{"chart"}, version: stated("version"),
		parts: func(d map[string]any) []map[string]any { return []map[string]any{mapAt(d, "helm")} },
		values: func(r *reader, helm map[string]any) (map[string]any, error) {
			return r.filesAnd(helm["valuesFiles"], helm["values"])
		},
		unread: []string{"targetCustomizations"},
	},
}

var patches = []string{"patches", "patchesStrategicMerge", "patchesJson6902", "replacements", "transformers"}

func stated(key string) func(*reader, map[string]any) any {
	return func(_ *reader, part map[string]any) any { return part[key] }
}

func listOf(key string) func(map[string]any) []map[string]any {
	return func(d map[string]any) []map[string]any { return listAt(d, key) }
}

// sources are the sources of an Application that may have values. If one source states its chart, the others are
// manifests, or files of values that it names by their ref.
func sources(d map[string]any) []map[string]any {
	all := append(listAt(d, "spec", "sources"), mapAt(d, "spec", "source"))
	other := func(source map[string]any) bool { return text(source["chart"]) == "" }
	if !slices.ContainsFunc(all, func(source map[string]any) bool { return !other(source) }) {
		other = func(source map[string]any) bool { return source["ref"] != nil && source["path"] == nil }
	}
	return slices.DeleteFunc(all, other)
}

// valuesKey is the key of a ConfigMap under which Flux expects values.
const valuesKey = "values.yaml"

// fluxVersion is the version of a HelmRelease's chart, or the tag of the OCIRepository that it refers to.
func (r *reader) fluxVersion(spec map[string]any) any {
	if version := at(spec, "chart", "spec", "version"); version != nil {
		return version
	}
	repository := r.object("OCIRepository", text(at(spec, "chartRef", "name")))
	return cmp.Or(text(at(repository, "spec", "ref", "tag")), text(at(repository, "spec", "ref", "semver")))
}

func (r *reader) fluxValues(spec map[string]any) (map[string]any, error) {
	all := map[string]any{}
	for _, from := range listAt(spec, "valuesFrom") {
		what := strings.TrimSpace(text(from["kind"]) + " " + text(from["name"]))
		if text(from["kind"]) != "ConfigMap" {
			r.Told = append(r.Told, fmt.Sprintf("the values of %s are not read: secrets stay where they are", what))
			continue
		}
		key := cmp.Or(text(from["valuesKey"]), valuesKey)
		body, err := r.configMap(text(from["name"]), key)
		switch {
		case err != nil:
			return nil, err
		case body == "" && from["optional"] == true:
			r.Told = append(r.Told, fmt.Sprintf("the values of %s, which is optional, were not found", what))
			continue
		case body == "" && r.file.Tree != nil:
			r.Told = append(r.Told, fmt.Sprintf("the values of %s are not read: no single one with the key %s is near the file", what, key))
			continue
		case body == "":
			return nil, fmt.Errorf("it takes values from the key %s of %s, which is neither in the stream nor beside the file: "+
				"expected that ConfigMap in the same stream", key, what)
		}
		if target := text(from["targetPath"]); target != "" {
			if err := set(all, target, strings.TrimSpace(body), false); err != nil {
				return nil, err
			}
			continue
		}
		values, err := r.vars.Map([]byte(body))
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", what, key, err)
		}
		all = chart.Merge(all, values)
	}
	return chart.Merge(all, mapAt(spec, "values")), nil
}

func (r *reader) object(kind, name string) map[string]any {
	matches := func(d map[string]any) bool { return text(d["kind"]) == kind && text(at(d, "metadata", "name")) == name }
	if i := slices.IndexFunc(r.documents, matches); i >= 0 {
		return r.documents[i]
	}
	if r.file.Find != nil {
		object, from := r.file.Find(kind, name)
		if kind == "ConfigMap" && object != nil {
			r.From = append(r.From, from)
		}
		return object
	}
	for _, file := range r.neighbours() {
		other := &reader{file: file, vars: r.vars}
		if other.parse() != nil {
			continue // it may be anything
		}
		if i := slices.IndexFunc(other.documents, matches); i >= 0 {
			return other.documents[i]
		}
	}
	return nil
}

// mostNeighbour is the size up to which a file beside the user's file is read.
const mostNeighbour = 1 << 20

func (r *reader) neighbours() []File {
	dir := filepath.Dir(r.file.Name)
	names := each.Where(slices.Sorted(maps.Keys(r.file.Tree)), func(name string) bool { return path.Dir(name) == dir })
	if entries, err := os.ReadDir(dir); r.file.Tree == nil && err == nil && r.path(filepath.Base(r.file.Name)) != "" {
		for _, e := range entries {
			if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.Size() <= mostNeighbour {
				names = append(names, filepath.Join(dir, e.Name()))
			}
		}
	}
	var all []File
	for _, name := range names {
		if ext := filepath.Ext(name); ext == ".yaml" || ext == ".yml" {
			if body, err := r.file.read(name); err == nil {
				all = append(all, File{Name: name, Text: body})
			}
		}
	}
	return all
}

func (r *reader) configMap(name, key string) (string, error) {
	for _, file := range r.neighbours() {
		other := &reader{file: file, vars: r.vars}
		if !strings.HasPrefix(filepath.Base(file.Name), "kustomization.") || other.parse() != nil {
			continue
		}
		for _, d := range other.documents {
			for _, generator := range listAt(d, "configMapGenerator") {
				files, _ := generator["files"].([]any)
				for _, f := range files {
					as, at, ok := strings.Cut(text(f), "=")
					if !ok {
						as, at = filepath.Base(as), as
					}
					if text(generator["name"]) != name || as != key {
						continue
					}
					body, err := r.file.read(filepath.Join(filepath.Dir(file.Name), at))
					r.From = append(r.From, filepath.Join(filepath.Dir(file.Name), at))
					if err != nil {
						return "", fmt.Errorf("the ConfigMap %s, as %s generates it: %w", name, file.Name, err)
					}
					return string(body), nil
				}
			}
		}
	}
	return text(at(r.object("ConfigMap", name), "data", key)), nil
}

// argoValues are the values of an Application's source. Of two values with the same path the later one applies, in the
// order valueFiles, values, valuesObject, parameters.
func (r *reader) argoValues(source map[string]any) (map[string]any, error) {
	helm := mapAt(source, "helm")
	names := helm["valueFiles"]
	if helm["ignoreMissingValueFiles"] == true {
		all, _ := names.([]any)
		names = slices.DeleteFunc(slices.Clone(all), func(name any) bool { return r.path(text(name)) == "" })
	}
	files, err := r.filesAnd(names, nil)
	if err != nil {
		return nil, err
	}
	own, err := r.inner(cmp.Or(helm["valuesObject"], helm["values"]))
	if err != nil {
		return nil, fmt.Errorf("helm.values: %w", err)
	}
	all := chart.Merge(files, own)
	for _, p := range listAt(helm, "parameters") {
		if err := set(all, text(p["name"]), text(p["value"]), p["forceString"] == true); err != nil {
			return nil, err
		}
	}
	for _, p := range listAt(helm, "fileParameters") {
		r.Told = append(r.Told, fmt.Sprintf("the value %s, from the file %s, is not read", text(p["name"]), text(p["path"])))
	}
	return all, nil
}

// filesAnd merges the values of files with values that are given beside the names of the files.
func (r *reader) filesAnd(names, own any) (map[string]any, error) {
	var all []map[string]any
	list, _ := names.([]any)
	for _, name := range list {
		values, err := r.beside(text(name))
		if err != nil {
			return nil, err
		}
		all = append(all, values)
	}
	values, err := r.inner(own)
	return chart.Merge(append(all, values)...), err
}

func (r *reader) rancherValues(spec map[string]any) (map[string]any, error) {
	values, err := r.inner(cmp.Or(spec["valuesContent"], spec["values"]))
	if err != nil {
		return nil, fmt.Errorf("spec.valuesContent: %w", err)
	}
	values = chart.Merge(values)
	sets := mapAt(spec, "set")
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		if err := set(values, name, text(sets[name]), false); err != nil {
			return nil, err
		}
	}
	if secrets := listAt(spec, "valuesSecrets"); len(secrets) > 0 {
		r.Told = append(r.Told, "the values of spec.valuesSecrets are not read: secrets stay where they are")
	}
	return values, nil
}

func (r *reader) kustomizeValues(entry map[string]any) (map[string]any, error) {
	own := each.Where([]any{entry["valuesFile"]}, func(name any) bool { return name != nil })
	file, err := r.filesAnd(own, nil)
	if err != nil {
		return nil, err
	}
	more, err := r.filesAnd(entry["additionalValuesFiles"], nil)
	if err != nil {
		return nil, err
	}
	inline := mapAt(entry, "valuesInline")
	switch how := cmp.Or(text(entry["valuesMerge"]), "override"); how {
	case "override":
		return chart.Merge(file, inline, more), nil
	case "merge":
		return chart.Merge(inline, file, more), nil
	case "replace":
		return chart.Merge(inline, more), nil
	default:
		return nil, fmt.Errorf("valuesMerge is %q: expected merge, override or replace", how)
	}
}

func (r *reader) helmfileValues(release map[string]any) (map[string]any, error) {
	all := map[string]any{}
	list, _ := release["values"].([]any)
	for _, item := range list {
		values, ok := item.(map[string]any)
		if !ok {
			var err error
			if strings.HasSuffix(text(item), ".gotmpl") && strings.Contains(text(item), "{{") {
				return nil, errors.New("its values are made by a template: expected what helmfile write-values prints")
			}
			if values, err = r.beside(text(item)); err != nil {
				return nil, err
			}
		}
		all = chart.Merge(all, values)
	}
	for _, p := range listAt(release, "set") {
		if items, ok := p["values"].([]any); ok {
			chart.Set(all, text(p["name"]), items)
		} else if err := set(all, text(p["name"]), text(p["value"]), false); err != nil {
			return nil, err
		}
	}
	for _, p := range listAt(release, "setString") {
		if err := set(all, text(p["name"]), text(p["value"]), true); err != nil {
			return nil, err
		}
	}
	if release["secrets"] != nil {
		r.Told = append(r.Told, "the values of secrets are not read: secrets stay where they are")
	}
	return all, nil
}
