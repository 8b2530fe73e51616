package bump

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

type document struct {
	file string
	root map[string]any
}

func (d *document) at(path string) string { return at(d.root, path) }

// String names the document, such as "HelmRelease kube-system/cilium"; empty if it has no kind.
func (d *document) String() string {
	return strings.TrimSpace(d.at("kind") + " " + strings.TrimPrefix(d.at("metadata.namespace")+"/"+d.at("metadata.name"), "/"))
}

// at is the single value at a path, such as "spec.version"; empty if there is none.
func at(node map[string]any, path string) string {
	switch value, _, _ := unstructured.NestedFieldNoCopy(node, strings.Split(path, ".")...); value.(type) {
	case nil, map[string]any, []any:
		return ""
	default:
		return fmt.Sprint(value)
	}
}

// place is where a file states a version of a component.
type place struct {
	*document
	component string
	written   string // the version as it is written
	// entry is the path to the place by the names of list elements and of documents in strings. Without indexes it
	// stays the same when elements are added.
	entry []string
	// node is the mapping that names the component; nil if a single string does.
	node map[string]any
	// key is the name of a variable that has the version.
	key string
	// chart is set if the version is a Helm chart's.
	chart bool
	// source is another place that states the version: the OCIRepository or HelmChart of a HelmRelease, or a variable.
	// missing is set if the source is not found, disabled if the component is not installed.
	source            *place
	missing, disabled bool
	// way names the source if the same place has several sources.
	way string
}

func (p *place) String() string {
	words := slices.DeleteFunc(append([]string{p.document.String()}, p.entry...), func(w string) bool { return w == "" })
	return strings.TrimSuffix(p.file+": "+strings.Join(words, ", "), ": ")
}

// components maps names of charts, beginnings of variables, and kinds that state Kubernetes' version to components.
var components = map[string]string{
	"cilium": "cilium", "metallb": "metallb", "calico": "calico", "tigera-operator": "calico", "tigera": "calico", "coredns": "coredns",
	"kube-proxy": "kube-proxy", "kubeproxy": "kube-proxy", "kube-router": "kube-router", "kuberouter": "kube-router",
	"KubernetesUpgrade": "kube-proxy", "KubeadmControlPlane": "kube-proxy", "TalosControlPlane": "kube-proxy",
}

var (
	imageRef     = regexp.MustCompile(`^((?:[\w.-]+(?::\d+)?/)?[\w./-]+)(?::([^@]+))?(?:@(sha256:\w+))?$`)
	variableName = regexp.MustCompile(`^(\w+?)(?:helm|chart|image)*(?:version|tag)$`)
	// variable finds the last part of the name of the first variable of a template.
	variable = regexp.MustCompile(`[#${]+[-\s]*\$?[\w.]*?(\w+)(?:[^\w.]|$)`)
	// mention finds the components in a text. Every document with a place has a word of mentions.
	mention    = regexp.MustCompile(`(?i)cilium|metallb|calico|tigera|coredns|kube[-_]?proxy|kube[-_]?router|kubernetes[-_]?version`)
	mentions   = strings.Fields("cilium metallb calico tigera coredns proxy router kubernetes controlplane chartref")
	structured = regexp.MustCompile(`(?i)\.(ya?ml|json)(\.\w+)?$`)
	// prose matches files that name versions and install nothing, and files that are no text.
	prose = regexp.MustCompile(`(?i)\.(mdx?|txt|rst|adoc|mod|sum|svg|html|css|[gt]z|zip|png|jpe?g|go|py|[cm]?[jt]sx?|rs|java|rb)$|` +
		`(?i)(^|/)(changelog|package-lock\.json|pnpm-lock\.yaml|([^C/]|C[^h/])[^/]*\.lock)$`)
	number = regexp.MustCompile(`\d+(?:\.(?:\d+|[x*]))+`)
	// rke2 is the version of a chart that RKE2 packages: 1.18.401 is the second package of 1.18.4.
	rke2 = regexp.MustCompile(`^(\d+\.\d+\.\d{1,2})\d\d$`)
)

func chartOf(name string) string {
	base, _, _ := strings.Cut(path.Base(strings.TrimSuffix(name, "/")), ":")
	return components[strings.TrimPrefix(strings.TrimSuffix(base, ".git"), "rke2-")]
}

// images maps ends of names of images, which have a component's version as tag, to components.
var images = map[string]string{
	"cilium/cilium": "cilium", "metallb/speaker": "metallb", "metallb/controller": "metallb", "calico/node": "calico",
	"coredns": "coredns", "kube-proxy": "kube-proxy", "kube-router": "kube-router",
}

func imageOf(name string) string {
	for end, component := range images {
		if ok, _ := (snapshot.Reference{Name: name}).IsOf(end); ok {
			return component
		}
	}
	return ""
}

func variableOf(name string) string {
	found := variableName.FindStringSubmatch(strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name)))
	if found == nil {
		return ""
	}
	return components[strings.Replace(found[1], "kubernetes", "kubeproxy", 1)] // which has its version
}

// pairs are the paths in a mapping which name a component, and have its version.
var pairs = []struct {
	name, versions string
	componentOf    func(name string) string
	chart          bool
	unless         string // a path that names the chart otherwise
}{
	{"chart", "version targetRevision", chartOf, true, ""},                               // of most objects
	{"path", "targetRevision", chartOf, true, ""},                                        // of the vendor's own git repository
	{"repoURL", "targetRevision", chartOf, true, "chart"},                                // Application, ApplicationSet
	{"chartName", "version", chartOf, true, ""},                                          // HelmChartProxy
	{"name", "version", chartOf, true, "chart"},                                          // Chart.yaml, kustomization
	{"url", "ref.tag ref.semver ref.digest", chartOf, true, ""},                          // OCIRepository
	{"metadata.name", "spec.chart.spec.version", chartOf, true, "spec.chart.spec.chart"}, // patches
	{"metadata.name", "spec.ref.tag", chartOf, true, "spec.url"},
	{"metadata.name", "spec.source.targetRevision", chartOf, true, "spec.source.chart"},
	{"name", "newTag digest", imageOf, false, ""},    // kustomization
	{"repository", "tag digest", imageOf, false, ""}, // values
	{"image", "tag", imageOf, false, ""},
	{"name", "value", variableOf, false, ""}, // environment
	{"kind", "spec.kubernetes.version spec.version", chartOf, false, ""},
}

func template(written string) bool { return strings.ContainsAny(written, "{$#") }

func placesOf(d *document) (all []*place) {
	proxyless := false
	// A text that states no version, such as a branch, is no place.
	add := func(p place) {
		if p.component != "" && (number.MatchString(p.written) || template(p.written) || strings.HasPrefix(p.written, "sha256:")) {
			p.document = d
			all = append(all, &p)
		}
	}
	var visit func(node any, entry []string)
	visit = func(node any, entry []string) {
		switch node := node.(type) {
		case map[string]any:
			proxyless = proxyless || at(node, "proxy.disabled") == "true" || at(node, "kubeProxy.enabled") == "false" // Talos, kops
			for _, pair := range pairs {
				p := place{component: pair.componentOf(at(node, pair.name)), chart: pair.chart, entry: entry, node: node}
				for _, path := range strings.Fields(pair.versions) {
					p.written = cmp.Or(p.written, at(node, path))
				}
				if pair.name == "name" {
					p.key = at(node, "name")
				}
				// A user's own chart may have the name of the vendor's chart.
				own := len(entry) == 0 && path.Base(d.file) == "Chart.yaml" && strings.TrimPrefix(at(node, "appVersion"), "v") != p.written
				if p.component != "" && p.written != "" && at(node, pair.unless) == "" && !own {
					add(p)
					break
				}
			}
			for _, key := range slices.Sorted(maps.Keys(node)) {
				add(place{component: variableOf(key), written: at(node, key), entry: append(slices.Clip(entry), key), key: key})
				visit(node[key], entry)
			}
		case []any:
			for _, item := range node {
				inner, _ := item.(map[string]any)
				visit(item, append(slices.Clip(entry), cmp.Or(at(inner, "name"), at(inner, "chart"), at(inner, "cluster"))))
			}
		case string:
			if strings.Contains(node, "\n") {
				inner, _ := placeholder.Values{}.Documents([]byte(node)) // it may be anything
				for _, root := range inner {
					visit(root, append(slices.Clip(entry), (&document{root: root}).String()))
				}
			} else if ref := imageRef.FindStringSubmatch(node); ref != nil {
				add(place{component: imageOf(ref[1]), written: cmp.Or(ref[2], ref[3]), entry: entry})
			}
		}
	}
	visit(d.root, nil)
	for _, p := range all {
		p.disabled = proxyless && p.component == "kube-proxy"
	}
	return all
}

// version is the version of a component that a place states. The error says why it states none.
func (p *place) version() (string, error) {
	written, _, _ := strings.Cut(strings.TrimSpace(p.written), "@")
	v, _ := snapshot.Version(written)
	if packaged := rke2.FindStringSubmatch(v); packaged != nil && p.chart {
		v = packaged[1]
	}
	switch {
	case p.missing:
		return "", fmt.Errorf("%s is not in the repository, or there more than once, or states no version", p.written)
	case strings.HasPrefix(written, "sha256:"):
		return "", errors.New("a digest alone names no version")
	case template(written):
		return "", fmt.Errorf("%s is a variable of a template", p.written)
	case v == "":
		return "", fmt.Errorf("%s is no single version", p.written)
	case p.chart && slices.Contains([]string{"coredns", "kube-proxy", "kube-router"}, p.component):
		return "", fmt.Errorf("%s is the version of a chart, which is not that of %s", p.written, p.component)
	}
	return v, nil
}
