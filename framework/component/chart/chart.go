// Package chart renders a vendor's Helm chart as Helm does, without a cluster.
package chart

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	helmchart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Chart is a Helm chart. Its methods do not change it.
type Chart struct {
	// Name and Version are in Chart.yaml.
	Name, Version string
	// Module is the folder of the vendor's Go module that the chart comes from; empty if it comes from elsewhere.
	Module string

	files    []*archive.BufferedFile
	defaults map[string]any // values.yaml, with the defaults of the charts it depends on
}

// Load reads the chart in a folder, with the charts it depends on.
func Load(dir string) (*Chart, error) {
	read, err := loader.LoadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the chart in %s: %w", dir, err)
	}
	defaults, err := util.CoalesceValues(read, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the default values of the chart %s: %w", read.Name(), err)
	}
	c := &Chart{Name: read.Name(), Version: strings.TrimPrefix(read.Metadata.Version, "v"), defaults: defaults}
	for _, f := range read.Raw {
		c.files = append(c.files, &archive.BufferedFile{Name: f.Name, Data: f.Data})
	}
	return c, nil
}

// Read parses the chart for one release: Helm removes from it the dependencies that values switch off.
func (c *Chart) Read() (*helmchart.Chart, error) {
	read, err := loader.LoadFiles(c.files)
	if err != nil {
		return nil, fmt.Errorf("reading the chart of %s %s: %w", c.Name, c.Version, err)
	}
	return read, nil
}

// Release is what a chart is rendered for.
type Release struct {
	Name, Namespace string
	// Values are the user's, which take precedence over the chart's defaults.
	Values map[string]any
	// KubeVersion is the cluster's version, such as 1.34.4.
	KubeVersion string
	// APIVersions are API versions and types that the cluster serves besides Kubernetes' own, such as
	// monitoring.coreos.com/v1 or monitoring.coreos.com/v1/ServiceMonitor.
	APIVersions []string
	// Upgrade renders what helm upgrade installs in place of helm install.
	Upgrade bool

	anyType bool // the values are not compared with the chart's schema
}

// Rendered is what Helm installs for a release.
type Rendered struct {
	// Objects are in Helm's order of installation. Its client sets the release's namespace where they have none.
	Objects []unstructured.Unstructured
	// CRDs are the objects of the folders crds: Helm installs them first, and neither upgrades nor deletes them.
	CRDs []unstructured.Unstructured
	// Hooks are objects that Helm creates at events of a release (annotation helm.sh/hook): they do not belong to it.
	Hooks []unstructured.Unstructured
	Notes string
}

// RefusedError says that a chart does not accept the values of a release.
type RefusedError struct {
	Chart, Version string
	Why            string // the chart's own sentence, or what its schema says
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the chart of %s %s refuses these values: %s", e.Chart, e.Version, e.Why)
}

// Render renders the chart as helm template does. A *RefusedError says that schema or templates refuse the values.
func (c *Chart) Render(r Release) (Rendered, error) {
	doing := fmt.Sprintf("rendering the chart of %s %s", c.Name, c.Version)
	read, err := c.Read()
	if err != nil {
		return Rendered{}, err
	}
	version, err := common.ParseKubeVersion(r.KubeVersion)
	if err != nil {
		return Rendered{}, fmt.Errorf("%s: the version of Kubernetes %q: %w", doing, r.KubeVersion, err)
	}
	if needs := read.Metadata.KubeVersion; needs != "" && !chartutil.IsCompatibleRange(needs, version.Version) {
		return Rendered{}, fmt.Errorf("%s: it needs Kubernetes %s, and the cluster has %s", doing, needs, version)
	}
	able := common.DefaultCapabilities.Copy()
	able.KubeVersion, able.APIVersions = *version, slices.Concat(able.APIVersions, common.VersionSet(r.APIVersions))
	// ToRenderValues and the templates' own functions change what they are given.
	users := Merge(r.Values)
	if err := chartutil.ProcessDependencies(read, users); err != nil {
		return Rendered{}, fmt.Errorf("%s: %w", doing, err)
	}
	options := common.ReleaseOptions{Name: r.Name, Namespace: r.Namespace, Revision: 1, IsInstall: !r.Upgrade, IsUpgrade: r.Upgrade}
	if r.Upgrade {
		options.Revision = 2
	}
	values, err := util.ToRenderValuesWithSchemaValidation(read, users, options, able, r.anyType)
	if err != nil {
		return Rendered{}, &RefusedError{Chart: c.Name, Version: c.Version, Why: schemaSays(err)}
	}
	files, err := engine.Render(read, values)
	if err != nil {
		return Rendered{}, &RefusedError{Chart: c.Name, Version: c.Version, Why: templateSays(err)}
	}
	var out Rendered
	const notes = "NOTES.txt"
	out.Notes = files[read.Name()+"/templates/"+notes]
	maps.DeleteFunc(files, func(name, _ string) bool { return filepath.Base(name) == notes })
	hooks, manifests, err := releaseutil.SortManifests(files, able.APIVersions, releaseutil.InstallOrder)
	if err != nil {
		return Rendered{}, fmt.Errorf("%s: %w", doing, err)
	}
	var errs []error
	add := func(to *[]unstructured.Unstructured, file, text string) {
		o := unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", doing, file, err))
		} else if len(o.Object) > 0 {
			*to = append(*to, o)
		}
	}
	for _, crd := range read.CRDObjects() {
		documents := releaseutil.SplitManifests(string(crd.File.Data))
		for _, key := range slices.SortedFunc(maps.Keys(documents), func(a, b string) int {
			return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) // manifest-9, manifest-10
		}) {
			add(&out.CRDs, crd.Filename, documents[key])
		}
	}
	for _, m := range manifests {
		add(&out.Objects, m.Name, m.Content)
	}
	for _, h := range hooks {
		add(&out.Hooks, h.Path, h.Manifest)
	}
	return out, errors.Join(errs...)
}

// Find returns the object of a kind and name; nil if it is not among the objects.
func Find(objects []unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	for i := range objects {
		if objects[i].GetKind() == kind && objects[i].GetName() == name {
			return &objects[i]
		}
	}
	return nil
}

func schemaSays(err error) string {
	var says []string
	for line := range strings.Lines(err.Error()) {
		if line, ok := strings.CutPrefix(strings.TrimSpace(line), "- "); ok {
			says = append(says, line)
		}
	}
	if len(says) == 0 {
		return oneLine(err.Error())
	}
	slices.Sort(says) // the schema is walked in any order
	return strings.Join(says, "; ")
}

// templateSays is the sentence with which a template refuses values, if it has one.
func templateSays(err error) string {
	// The function fail of Helm's templates: "execution error at (FILE:LINE:COLUMN): ...".
	if _, at, ok := strings.Cut(err.Error(), "execution error at ("); ok {
		if _, says, ok := strings.Cut(at, "): "); ok {
			return oneLine(says)
		}
	}
	return oneLine(err.Error())
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
