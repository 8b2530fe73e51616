package bump

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
)

// Values are the values of a chart at a place.
type Values struct {
	// Files have the values, for qualify.ReadFiles; none if there are no values.
	Files []releasefile.File
	// NotRead are sentences about values that are not read.
	NotRead []string
	all     map[string]any
}

// releases are the kinds, and the keys of documents without one, which have the values of their charts.
var releases = []string{"HelmRelease", "Application", "ApplicationSet", "HelmChart", "HelmChartProxy", "helmCharts", "releases", "helm"}

// installed reports whether relapse installs a component by its chart, with values.
func installed(component string) bool { return component == "cilium" || component == "metallb" }

// values are those of the chart at a place.
func (t *tree) values(p *place) (v Values) {
	kind := p.at("kind")
	if !p.chart && kind != "ApplicationSet" || !installed(p.component) { // a generator has versions of a chart
		return v
	}
	find := func(kind, name string) map[string]any {
		if d := t.object(kind, p.at("metadata.namespace"), name, p.document); d != nil {
			return d.root
		}
		return nil
	}
	file := releasefile.File{Name: p.file, Tree: t.files, Find: find}
	root := maps.Clone(p.root)
	for _, list := range []string{"helmCharts", "releases"} { // of which others may be of the same chart
		if root[list] != nil {
			root[list] = []any{p.node}
		}
	}
	documents := []any{root}
	switch base := path.Base(p.file); {
	case base == "Chart.yaml" || base == "requirements.yaml":
		file.Name = path.Join(path.Dir(p.file), "values.yaml")
		others, _ := fs.Glob(file.Tree, path.Join(path.Dir(p.file), "values?*.yaml"))
		for _, other := range others {
			v.NotRead = append(v.NotRead, other+" is not read: what takes it is not known")
		}
		all, err := placeholder.Values{}.Map([]byte(t.texts[file.Name]))
		own, there := all[cmp.Or(at(p.node, "alias"), at(p.node, "name"))]
		if err != nil || !there {
			return v.wrong(file, err)
		}
		documents = []any{own}
	case !slices.ContainsFunc(releases, func(name string) bool { return kind == name || p.root[name] != nil }):
		return v
	case kind == "HelmChart":
		if config := find("HelmChartConfig", p.at("metadata.name")); config != nil {
			documents = append(documents, config)
		}
	}
	var err error
	if file.Text, err = yaml.Marshal(map[string]any{"kind": "List", "items": documents}); err != nil {
		return v.wrong(file, err)
	}
	read, err := releasefile.Read(p.component, file, nil)
	if err != nil {
		return v.wrong(file, err)
	}
	if v.all = read.Values; len(v.all) > 0 {
		v.Files = []releasefile.File{file}
	}
	for _, says := range read.Told {
		v.NotRead = append(v.NotRead, file.Name+": "+says)
	}
	for _, x := range placeholder.In(read.Values) {
		v.NotRead = append(v.NotRead, fmt.Sprintf("%s: %s is a variable (%s)", file.Name, strings.Join(x.Path, "."), x.Name))
	}
	return v
}

func (v Values) wrong(file releasefile.File, err error) Values {
	if err != nil {
		v.NotRead = append(v.NotRead, fmt.Sprintf("%s: no values are read: %v", file.Name, err))
	}
	return v
}
