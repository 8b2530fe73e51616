package bump

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology/each"
)

// Values are the values of a chart at a place.
type Values struct {
	// Files have the values, for releasefile.ReadAll. From are the names of all files that they come from.
	Files []releasefile.File
	From  []string
	// NotRead are sentences about values that are not read.
	NotRead []string
	all     map[string]any
	read    bool // the values are known; there may be none
}

// releases are the kinds, and the keys of documents without a kind, that have values of charts.
var releases = []string{"HelmRelease", "Application", "ApplicationSet", "HelmChart", "HelmChartProxy", "helmCharts", "releases", "helm"}

// installed reports whether relapse installs a component by its chart, with values.
func installed(component string) bool { return component == "cilium" || component == "metallb" }

// isBase reports whether an object states its chart. A patch of the object does not.
func (d *document) isBase() bool {
	_, several, _ := unstructured.NestedFieldNoCopy(d.root, "spec", "sources")
	return several || d.at("spec.chart")+d.at("spec.chart.spec.chart")+d.at("spec.chartRef.name")+d.at("spec.source.chart") != ""
}

// values are the values of the chart at a place. It is long because each kind of object has its values elsewhere.
func (t *tree) values(p *place) (v Values) {
	kind := p.at("kind")
	if !p.chart || !installed(p.component) {
		return v
	}
	find := func(kind, name string) (map[string]any, string) {
		d := cmp.Or(t.object(kind, name, p.document), &document{})
		return d.root, d.file
	}
	file := releasefile.File{Name: p.file, Tree: t.texts, Find: find, Origin: t.origin}
	root := maps.Clone(p.root)
	for _, list := range []string{"helmCharts", "releases"} { // other elements may have the same chart
		if root[list] != nil {
			root[list] = []any{p.node}
		}
	}
	// An object that states no chart is a patch of the object with the same name that states one.
	same := each.Where(like(t.naming(p.at("metadata.name")), kind, p.at("metadata.namespace"), p.at("metadata.name")),
		func(d *document) bool { return kind != "" && d.String()+d.file != p.document.String()+p.file })
	bases := each.Where(same, (*document).isBase)
	switch {
	case p.isBase():
		for _, d := range same {
			if !d.isBase() {
				v.NotRead = append(v.NotRead, fmt.Sprintf("%s: %s is not read: it may change the values", d.file, d))
			}
		}
	case len(bases) == 1:
		root = chart.Merge(bases[0].root, root)
		v.From = append(v.From, bases[0].file)
	case kind == "HelmRelease":
		v.NotRead = append(v.NotRead, fmt.Sprintf("%s: %d objects of its name state a chart: their values are not read", p.file, len(bases)))
	}
	documents := []any{root}
	switch base := path.Base(p.file); {
	case base == "Chart.yaml" || base == "requirements.yaml":
		file.Name = path.Join(path.Dir(p.file), "values.yaml")
		for _, other := range slices.Sorted(maps.Keys(t.texts)) {
			if matches, _ := path.Match(path.Join(path.Dir(p.file), "values?*.yaml"), other); matches {
				v.NotRead = append(v.NotRead, other+" is not read: what takes it is not known")
			}
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
		name := p.at("metadata.name")
		if config, from := find("HelmChartConfig", name); config != nil {
			documents, v.From = append(documents, config), append(v.From, from)
		} else if n := len(like(t.naming(name), "HelmChartConfig", p.at("metadata.namespace"), name)); n > 0 {
			v.NotRead = append(v.NotRead, fmt.Sprintf("%s: which of %d HelmChartConfigs elsewhere is its own is not known", p.file, n))
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
	v.all, v.read = read.Values, true
	if len(v.all) > 0 {
		v.Files = []releasefile.File{file}
		v.From = slices.Compact(slices.Concat([]string{file.Name}, v.From, read.From))
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
