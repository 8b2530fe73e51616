package bundle

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// The resources of which something is asked beside what sources read.
var (
	namespaces  = schema.GroupResource{Resource: "namespaces"}
	nodes       = schema.GroupResource{Resource: "nodes"}
	pods        = schema.GroupResource{Resource: "pods"}
	services    = schema.GroupResource{Resource: "services"}
	slicesOf    = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	definitions = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	ciliumNodes = schema.GroupResource{Group: "cilium.io", Resource: "ciliumnodes"}
	daemonSets  = schema.GroupResource{Group: "apps", Resource: "daemonsets"}
	leases      = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
)

func rbac(resource string) schema.GroupResource {
	return schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: resource}
}

var (
	// always are objects that each cluster has: a list without them is a part.
	always = map[schema.GroupResource]key{
		namespaces: {"", "kube-system"}, services: {"default", "kubernetes"}, slicesOf: {"default", "kubernetes"},
		rbac("clusterroles"): {"", "cluster-admin"}, rbac("clusterrolebindings"): {"", "cluster-admin"},
		rbac("roles"):        {"kube-system", "extension-apiserver-authentication-reader"},
		rbac("rolebindings"): {"kube-system", "system::extension-apiserver-authentication-reader"},
	}
	// initial are the namespaces that each cluster has.
	initial = sets.New("default", "kube-node-lease", "kube-public", "kube-system")
	// lasting are those of them that stay for as long as their cluster does.
	lasting = map[schema.GroupResource]key{
		namespaces: always[namespaces], services: always[services], rbac("clusterroles"): always[rbac("clusterroles")],
	}
	// vendors are parts of the names of the programs that custom resources of a group are for.
	vendors = map[string][]string{
		"cilium.io": {"cilium"}, "metallb.io": {"metallb"}, "frrk8s.metallb.io": {"metallb", "frr-k8s"},
		"crd.projectcalico.org": {"calico", "tigera", "canal"}, "crd.antrea.io": {"antrea"},
	}
)

// collected is what a bundle has of one resource, in one version of its API.
type collected struct {
	schema.GroupVersionResource
	// kind is of its objects, such as Node.
	kind    string
	objects map[key]object
	lists   []*list
	// labels are those that all of its objects have.
	labels map[string]string
	// lacks is why these are not all objects of the cluster; empty: they are.
	lacks string
}

type key struct{ namespace, name string }

func (k key) String() string { return strings.TrimPrefix(k.namespace+"/"+k.name, "/") }

func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.namespace, other.namespace), cmp.Compare(k.name, other.name))
}

type object struct {
	json []byte
	// at is where it stands, FILE:LINE.
	at, uid  string
	revision uint64
	lists    []*list
}

// list is what a document has of one resource.
type list struct {
	*document
	// revision is that of the list, or of its newest object, and in has the namespaces of its objects.
	revision uint64
	nsNames  map[string]bool
	// typed is set if it is as the API server has answered, and all if what has written it says that it is of all
	// namespaces, and of all objects in them.
	typed, all bool
	// flaw is why it cannot be all of its scope.
	flaw string
	scope
}

// scope is what a list is all of: a namespace, or, if it has no name, all of them. Several lists of workloads may be of
// several labels: they are of one selection if their files are of one name, but for a time.
type scope struct{ namespace, files string }

func (b *Bundle) collection(r schema.GroupVersionResource, kind string) *collected {
	c := b.kinds[r]
	if c == nil {
		c = &collected{GroupVersionResource: r, kind: kind, objects: map[key]object{}}
		b.kinds[r] = c
	}
	return c
}

// settle decides, once all files are read, what is all of the cluster: which namespaces there are is known then.
func (b *Bundle) settle() {
	for _, c := range b.kinds {
		b.scopes(c)
		c.newest()
	}
	b.facts()
	for _, c := range b.kinds {
		c.lacks = b.proof(c)
	}
}

var (
	// sysdump are files of lists of all namespaces in a sysdump of Cilium, whose other files may have one namespace.
	sysdump = regexp.MustCompile(`^k8s-[a-z0-9]+-\d{8}-\d{6}\.yaml$`)
	// dump is in a folder that kubectl cluster-info dump has written, and nodesOfDump has all Nodes there.
	dump        = regexp.MustCompile(`^(?:(.*)/)?kube-system/replication-controllers\.(?:json|yaml)$`)
	nodesOfDump = regexp.MustCompile(`^nodes\.(json|yaml)$`)
	// customResources are files in which troubleshoot.sh has all objects of a custom resource, as a sequence alone.
	customResources = regexp.MustCompile(`(^|/)cluster-resources/custom-resources/[a-z0-9.-]+(/[a-z0-9-]+)?\.(json|yaml)$`)
	digits          = regexp.MustCompile(`\d+`)
)

// unscoped reports whether objects of a resource are in no namespace.
func unscoped(r schema.GroupResource) bool {
	return r == nodes || r == namespaces || r == definitions || strings.HasPrefix(r.Resource, "cluster") ||
		vendors[r.Group] != nil && !strings.HasSuffix(r.Group, "metallb.io")
}

// scopes decides what each list is all of. That it is of all namespaces needs a proof: kubectl get without
// --all-namespaces, and a request for one namespace, lead to a list that looks the same. A list with objects of two
// namespaces is of all of them, and MetalLB reads no namespace but its own.
func (b *Bundle) scopes(c *collected) {
	paged := map[uint64]bool{}
	for _, l := range c.lists {
		one, folder := "", ""
		for _, name := range strings.FieldsFunc(l.file, func(c rune) bool { return c == '/' || c == '.' }) {
			if b.namespaces.Has(name) || initial.Has(name) {
				folder = name // each namespace may have its folder, or its file
			}
		}
		for one = range l.nsNames {
		}
		custom := l.Kind == "" && customResources.MatchString(l.file)
		l.all = l.request == Path(c.GroupVersionResource) || custom && unscoped(c.GroupResource()) ||
			b.sysdumps[path.Dir(l.file)] && sysdump.MatchString(path.Base(l.file)) ||
			b.dumps[path.Dir(l.file)] && nodesOfDump.MatchString(path.Base(l.file))
		if l.Kind == "" && !custom {
			l.flaw = cmp.Or(l.flaw, "its list does not say of what it is one, or was cut off")
		}
		switch {
		case l.all, unscoped(c.GroupResource()), len(l.nsNames) > 1, strings.HasSuffix(c.Group, "metallb.io") && b.homes[one]:
		case one == "" && folder == "":
			l.flaw = cmp.Or(l.flaw, "an empty list, and it is not known whether of all namespaces")
		default:
			l.namespace = cmp.Or(one, folder)
		}
		if c.Group == "apps" {
			l.files = digits.ReplaceAllString(l.file, "")
		}
		paged[l.revision] = paged[l.revision] || l.Metadata.Continue != "" || l.Metadata.RemainingItemCount > 0
	}
	for _, l := range c.lists {
		if paged[l.revision] {
			l.flaw = "its list was collected in pages"
		}
	}
}

// newest takes out what a newer list of a scope no longer has.
func (c *collected) newest() {
	type newest struct {
		revision uint64
		lists    int // of that revision
	}
	last, torn := map[scope]newest{}, map[scope]bool{}
	for _, l := range c.lists {
		n := last[l.scope]
		if l.revision > n.revision {
			n = newest{revision: l.revision}
		}
		if l.flaw == "" && l.revision == n.revision {
			last[l.scope] = newest{n.revision, n.lists + 1}
		}
	}
	for k, o := range c.objects {
		seen, lists := o.revision, map[scope]int{{}: 0, {namespace: k.namespace}: 0}
		for _, l := range o.lists {
			seen = max(seen, l.revision)
			if lists[l.scope] += 0; l.flaw == "" && l.revision == last[l.scope].revision {
				lists[l.scope]++
			}
		}
		for s, count := range lists {
			switch n := last[s]; {
			case n.lists > 0 && n.revision > seen:
				delete(c.objects, k)
			case n.lists > count && n.revision == seen && len(o.lists) > 0:
				torn[s] = true
			}
		}
	}
	for _, l := range c.lists {
		if torn[l.scope] {
			l.flaw = "it has two lists that differ, and which of them is newer is not known"
		}
	}
}

type about struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct{ NodeName, RenewTime string }
	Status   struct {
		Phase                  string
		DesiredNumberScheduled int
	}
	Endpoints []struct{ TargetRef struct{ Kind, Name string } }
}

// facts notes what objects say of their cluster, which others there are above all.
func (b *Bundle) facts() {
	for resource, c := range b.kinds {
		for k, o := range c.objects {
			var content about
			_ = json.Unmarshal(o.json, &content)
			if c.labels == nil {
				c.labels = map[string]string{}
				maps.Copy(c.labels, content.Metadata.Labels)
			}
			maps.DeleteFunc(c.labels, func(name, _ string) bool { _, has := content.Metadata.Labels[name]; return !has })
			if resource.GroupResource() != namespaces {
				b.says(namespaces, "", k.namespace)
			}
			switch resource.GroupResource() {
			case nodes:
				b.says(ciliumNodes, "", k.name)
			case pods:
				b.says(nodes, "", content.Spec.NodeName)
			case slicesOf:
				b.says(services, k.namespace, content.Metadata.Labels[discoveryv1.LabelServiceName])
				for _, e := range content.Endpoints {
					if e.TargetRef.Kind == "Pod" {
						b.says(pods, k.namespace, e.TargetRef.Name)
					}
				}
			case daemonSets:
				b.daemons = max(b.daemons, content.Status.DesiredNumberScheduled)
			case leases:
				renewed, _ := time.Parse(time.RFC3339Nano, content.Spec.RenewTime)
				if k.namespace == "kube-node-lease" && renewed.After(b.renewed) {
					b.renewed = renewed
				}
			}
		}
		if vendors[resource.Group] != nil {
			b.says(definitions, "", resource.GroupResource().String())
		}
	}
}

// says notes that there is an object, if it has a name, and that something could have named it.
func (b *Bundle) says(r schema.GroupResource, namespace, name string) {
	if b.said[r] == nil {
		b.said[r] = sets.Set[key]{}
	}
	if name != "" {
		b.said[r].Insert(key{namespace, name})
	}
}

// proof says what of a resource is not known to be in the bundle; empty: nothing, as far as can be seen. All of it is lists
// of all namespaces, that have what each cluster has, and what other objects name: a list that was cut off, or selected by
// a label, has not.
func (b *Bundle) proof(c *collected) string {
	r, flaw, parts, proven, newest := c.GroupResource(), "", sets.Set[string]{}, false, uint64(0)
	for _, l := range c.lists {
		if l.flaw != "" {
			flaw = l.flaw
			continue
		}
		parts.Insert(l.namespace)
		if l.namespace == "" && l.revision >= newest { // an older one no longer counts, and objects that the newest lacks are gone
			proven, newest = l.all || proven && l.revision == newest, l.revision
		}
	}
	everywhere := r != namespaces && b.everywhere(parts)
	switch {
	case parts.Has(""), everywhere:
	case r == nodes && b.daemons > 0 && b.daemons == len(c.objects):
		// Single Nodes, as oc adm inspect writes them: no DaemonSet is to have more pods than there are, and one has as many.
	case flaw != "":
		return flaw
	case len(parts) > 0:
		return "only namespace " + strings.Join(sets.List(parts), " and namespace ") + " was collected (kubectl get " + r.Resource + " -A -o yaml has all)"
	default:
		return "it has single objects, but no complete list"
	}

	const missing, incomplete = "the list is incomplete: %s is missing", "%ss may be incomplete, and there are no %s to check them against " +
		"(kubectl get %s -A -o yaml has them)"
	if k, ok := always[r]; ok && c.objects[k].json == nil {
		return fmt.Sprintf(missing, k)
	}
	if partial(r) && !proven && len(c.objects) > 1 && len(c.labels) > 0 {
		return "it may have been filtered (kubectl -l): all its objects have the label " + slices.Min(slices.Collect(maps.Keys(c.labels)))
	}
	// What others name may be of another moment. EndpointSlices may have changed a moment before or after: half of it is
	// enough where the list says that nothing was selected.
	said, lost := len(b.said[r]), []key{}
	for k := range b.said[r] {
		if c.objects[k].json == nil {
			lost = append(lost, k)
		}
	}
	switch r {
	case leases:
		if b.renewed.IsZero() {
			return fmt.Sprintf(missing, "each Lease of kube-node-lease")
		}
	case nodes:
		if !proven && len(lost) > 0 {
			return fmt.Sprintf(missing, lost[0].name+", where a Pod is,")
		}
		if !proven && b.said[r] == nil { // no Pod, of whatever Node
			return fmt.Sprintf(incomplete, c.kind, "Pods", "pods")
		}
	case services, pods:
		share := 10
		if proven {
			share = 2
		}
		if share*len(lost) > said {
			return fmt.Sprintf("the list is incomplete: %d of the %d %s that EndpointSlices name are missing, such as %s",
				len(lost), said, r.Resource, lost[0])
		}
		if !proven && !everywhere && (said == 0 || !b.whole(slicesOf)) {
			return fmt.Sprintf(incomplete, c.kind, "EndpointSlices", "endpointslices")
		}
	default:
		if len(lost) > 0 && !(r == namespaces && proven) && !(r == ciliumNodes && c.shown()) {
			return fmt.Sprintf(missing, lost[0])
		}
	}
	return ""
}

// everywhere reports whether each namespace of the cluster has a list. Without a list of Namespaces those that each
// cluster has are all there: kubectl cluster-info dump --all-namespaces has written it.
func (b *Bundle) everywhere(parts sets.Set[string]) bool {
	if b.kinds[namespaces.WithVersion("v1")] == nil {
		return parts.IsSuperset(b.namespaces.Union(initial))
	}
	return parts.IsSuperset(b.namespaces) && b.whole(namespaces)
}

func (b *Bundle) whole(r schema.GroupResource) bool {
	c := b.kinds[r.WithVersion("v1")]
	return c != nil && b.proof(c) == ""
}

// shown reports whether a list is as the API server has answered: kubectl shows one that was selected as all of them.
func (c *collected) shown() bool {
	return slices.ContainsFunc(c.lists, func(l *list) bool { return (l.all || l.typed) && l.flaw == "" })
}

// lacks says why a resource of the cluster is not read; empty: it is.
func (b *Bundle) lacks(r schema.GroupVersionResource) string {
	c := b.kinds[r]
	switch {
	case c != nil && c.lacks == "":
		return ""
	case b.failures[r.Resource] != "":
		return "the collector could not list it, because " + b.failures[r.Resource]
	case c == nil:
		return "the bundle has no list of it"
	}
	return "the bundle does not have all: " + c.lacks
}

// Lacks says why not all Pods are in the bundle; empty: they are.
func (b *Bundle) Lacks() string { return b.lacks(pods.WithVersion("v1")) }

// partial reports whether a resource is judged by the objects of some namespaces: fewer of them lead to fewer
// findings. A Service or a RoleBinding that is not seen leads to wrong ones.
func partial(r schema.GroupResource) bool { return r == pods || r.Group == "apps" }

// known reports whether the cluster may have a resource. A custom one is not there if there is no definition of it (where
// programs of its vendor run, in a list that the API server has answered), or the collector was told so, or if nothing
// names a program of its vendor.
func (b *Bundle) mayServe(r schema.GroupResource) bool {
	for resource := range b.kinds {
		if resource.GroupResource() == r {
			return true
		}
	}
	defined := b.kinds[definitions.WithVersion("v1")]
	switch {
	case vendors[r.Group] == nil:
		return true
	case b.unserved[r.Resource] && b.wanted[r] == 1: // the collector may have asked for another version
		return false
	case defined != nil && defined.lacks == "" && (!b.named[r.Group] || defined.shown()):
		return defined.objects[key{"", r.String()}].json != nil
	}
	return b.Lacks() != "" || b.named[r.Group]
}

// programs notes the vendors whose programs an object of Kubernetes' own kinds names: a Pod that runs one, a Node by a
// condition or an annotation that one has written, or a Service. MetalLB is at home where its images run.
func (b *Bundle) programs(r schema.GroupResource, namespace string, text []byte) {
	if r.Group != "" && r.Group != "apps" {
		return
	}
	text = bytes.ToLower(text)
	for group, programs := range vendors {
		b.named[group] = b.named[group] || slices.ContainsFunc(programs, func(p string) bool { return bytes.Contains(text, []byte(p)) })
	}
	if r != services && runsMetalLB.Match(text) {
		b.homes[namespace] = true
	}
}

var runsMetalLB = regexp.MustCompile(`"image":\s*"[^"]*(metallb|frr-k8s)`)

// Parts say of which resources a part is judged, and how to collect what is not in the bundle.
func (b *Bundle) Parts() []string {
	var all, assumed []string
	for r, c := range b.kinds {
		if partial(r.GroupResource()) && c.lacks != "" {
			all = append(all, fmt.Sprintf("%ss that are not in the bundle are not judged: %s.", c.kind, c.lacks))
			b.note(r)
		}
		if vendors[r.Group] != nil && unscoped(r.GroupResource()) && c.lacks == "" && !c.shown() {
			assumed = append(assumed, r.GroupResource().String())
		}
	}
	if len(assumed) > 0 {
		slices.Sort(assumed)
		all = append(all, "Lists of kubectl are taken for complete, which do not show whether they were filtered (kubectl -l): "+
			strings.Join(assumed, ", ")+".")
	}
	slices.Sort(all)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.asked) > 0 {
		all = append(all, "The bundle does not have all that is judged. To complete it, unpack the bundle, run this against the cluster, and save the "+
			"output as a file in it: for list in "+strings.Join(slices.Sorted(maps.Keys(b.asked)), " ")+
			`; do echo "{\"request\":\"$list\"}"; kubectl get --raw $list; echo; done`)
	}
	return all
}

// note notes that a resource was asked for in vain, and with a custom one the others of its vendor: which of them matter,
// and whether there are any, they and definitions tell.
func (b *Bundle) note(r schema.GroupVersionResource) {
	if vendors[r.Group] == nil {
		b.ask(Path(r))
		return
	}
	if b.lacks(definitions.WithVersion("v1")) != "" {
		b.ask(Path(definitions.WithVersion("v1")))
		if b.Lacks() != "" {
			return
		}
	}
	for _, other := range b.resources {
		if other.Group == r.Group && b.lacks(other) != "" && !b.otherwise(other) && b.mayServe(other.GroupResource()) {
			b.ask(Path(other))
		}
	}
}

func (b *Bundle) ask(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[path] = true
}

// Path is the path of a list of all objects of a resource.
func Path(r schema.GroupVersionResource) string {
	if r.Group == "" {
		return "/api/" + r.Version + "/" + r.Resource
	}
	return "/apis/" + r.Group + "/" + r.Version + "/" + r.Resource
}
