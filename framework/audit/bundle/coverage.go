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

// The resources that this package treats specially.
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
	// always are objects that each cluster has: a list without them is incomplete.
	always = map[schema.GroupResource]key{
		namespaces: {"", "kube-system"}, services: {"default", "kubernetes"}, slicesOf: {"default", "kubernetes"},
		rbac("clusterroles"): {"", "cluster-admin"}, rbac("clusterrolebindings"): {"", "cluster-admin"},
		rbac("roles"):        {"kube-system", "extension-apiserver-authentication-reader"},
		rbac("rolebindings"): {"kube-system", "system::extension-apiserver-authentication-reader"},
	}
	// initial are the namespaces that each cluster has.
	initial = sets.New("default", "kube-node-lease", "kube-public", "kube-system")
	// lasting are objects in always that live as long as their cluster.
	lasting = map[schema.GroupResource]key{
		namespaces: always[namespaces], services: always[services], rbac("clusterroles"): always[rbac("clusterroles")],
	}
	// vendors are parts of the names of a vendor's programs, by the API groups of their custom resources.
	vendors = map[string][]string{
		"cilium.io": {"cilium"}, "metallb.io": {"metallb"}, "frrk8s.metallb.io": {"metallb", "frr-k8s"},
		"crd.projectcalico.org": {"calico", "tigera", "canal"}, "crd.antrea.io": {"antrea"},
	}
)

// collected is the part of a bundle about one resource, in one version of its API.
type collected struct {
	schema.GroupVersionResource
	// kind is the kind of the objects, such as Node.
	kind    string
	objects map[key]object
	lists   []*list
	// labels are the labels that all objects have.
	labels map[string]string
	// lacks is why these may not be all objects of the cluster; empty: they are all.
	lacks string
}

type key struct{ namespace, name string }

func (k key) String() string { return strings.TrimPrefix(k.namespace+"/"+k.name, "/") }

func (k key) compare(other key) int {
	return cmp.Or(cmp.Compare(k.namespace, other.namespace), cmp.Compare(k.name, other.name))
}

type object struct {
	json []byte
	// at is the place of the object, FILE:LINE.
	at, uid  string
	revision uint64
	lists    []*list
}

// list is the part of a document about one resource.
type list struct {
	*document
	// revision is the resourceVersion of the list, or of its newest object. nsNames are the namespaces of its objects.
	revision uint64
	nsNames  map[string]bool
	// typed is set for an unchanged answer of the API server. all is set if the collector is known to list all objects
	// of all namespaces.
	typed, all bool
	// flaw is why the list cannot have all objects of its scope.
	flaw string
	scope
}

// scope says of what a list has all objects: of a namespace, or, if it is empty, of all. Lists of workloads may be
// filtered by different labels: lists have the same filter if the names of their files differ only in digits.
type scope struct{ namespace, files string }

func (b *Bundle) collection(r schema.GroupVersionResource, kind string) *collected {
	c := b.kinds[r]
	if c == nil {
		c = &collected{GroupVersionResource: r, kind: kind, objects: map[key]object{}}
		b.kinds[r] = c
	}
	return c
}

// settle decides which resources are complete, after all files are read: only then all namespaces are known.
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
	// sysdump matches the files of a sysdump that have lists of all namespaces.
	sysdump = regexp.MustCompile(`^k8s-[a-z0-9]+-\d{8}-\d{6}\.yaml$`)
	// dump matches a file that identifies a folder of kubectl cluster-info dump. nodesOfDump has all Nodes there.
	dump        = regexp.MustCompile(`^(?:(.*)/)?kube-system/replication-controllers\.(?:json|yaml)$`)
	nodesOfDump = regexp.MustCompile(`^nodes\.(json|yaml)$`)
	// customResources match files in which troubleshoot.sh writes all objects of a custom resource, as a mere sequence.
	customResources = regexp.MustCompile(`(^|/)cluster-resources/custom-resources/[a-z0-9.-]+(/[a-z0-9-]+)?\.(json|yaml)$`)
	digits          = regexp.MustCompile(`\d+`)
)

// unscoped reports whether a resource is cluster-scoped.
func unscoped(r schema.GroupResource) bool {
	return r == nodes || r == namespaces || r == definitions || strings.HasPrefix(r.Resource, "cluster") ||
		vendors[r.Group] != nil && !strings.HasSuffix(r.Group, "metallb.io")
}

// scopes decides the scope of each list. All namespaces need a proof, because a list of one namespace looks the same. A
// list with objects of two namespaces is of all namespaces, and MetalLB reads only its own namespace.
func (b *Bundle) scopes(c *collected) {
	paged := map[uint64]bool{}
	for _, l := range c.lists {
		one, folder := "", ""
		for _, name := range strings.FieldsFunc(l.file, func(c rune) bool { return c == '/' || c == '.' }) {
			if b.namespaces.Has(name) || initial.Has(name) {
				folder = name // collectors may write a folder or a file for each namespace
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

// newest removes objects that a newer list of their scope no longer has.
func (c *collected) newest() {
	type newest struct {
		revision uint64
		lists    int // the number of lists of that revision
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

// facts notes what objects say about their cluster, above all which other objects they refer to.
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

// says notes that an object of a resource refers to another object, by name; an empty name refers to none.
func (b *Bundle) says(r schema.GroupResource, namespace, name string) {
	if b.said[r] == nil {
		b.said[r] = sets.Set[key]{}
	}
	if name != "" {
		b.said[r].Insert(key{namespace, name})
	}
}

// proof says why a resource may not be complete in the bundle; empty: it is complete. Complete are lists of all
// namespaces that have the objects in always, and the objects that other objects refer to: a list that was cut off, or
// filtered by a label, does not have them.
func (b *Bundle) proof(c *collected) string {
	r, flaw, parts, proven, newest := c.GroupResource(), "", sets.Set[string]{}, false, uint64(0)
	for _, l := range c.lists {
		if l.flaw != "" {
			flaw = l.flaw
			continue
		}
		parts.Insert(l.namespace)
		if l.namespace == "" && l.revision >= newest { // a newer list replaces older ones
			proven, newest = l.all || proven && l.revision == newest, l.revision
		}
	}
	everywhere := r != namespaces && b.everywhere(parts)
	switch {
	case parts.Has(""), everywhere:
	case r == nodes && b.daemons > 0 && b.daemons == len(c.objects):
		// oc adm inspect writes single Nodes. They are all if the largest DaemonSet wants a pod on each.
	case flaw != "":
		return flaw
	case len(parts) > 0:
		return "only namespace " + strings.Join(sets.List(parts), " and namespace ") +
			" was collected (kubectl get " + r.Resource + " -A -o yaml has all)"
	default:
		return "it has single objects, but no complete list"
	}

	if k, ok := always[r]; ok && c.objects[k].json == nil {
		return fmt.Sprintf(missing, k)
	}
	if partial(r) && !proven && len(c.objects) > 1 && len(c.labels) > 0 {
		return "it may have been filtered (kubectl -l): all its objects have the label " + slices.Min(slices.Collect(maps.Keys(c.labels)))
	}
	return b.lost(c, proven, everywhere)
}

const missing, incomplete = "the list is incomplete: %s is missing",
	"%ss may be incomplete, and there are no %s to check them against (kubectl get %s -A -o yaml has them)"

// lost says which objects are missing although other objects refer to them; empty: none. EndpointSlices may have been
// read at another time than Services and Pods, so some of these may be missing: up to half of the objects that
// EndpointSlices refer to if the list is known to be unfiltered (proven), or else a tenth.
func (b *Bundle) lost(c *collected, proven, everywhere bool) string {
	r := c.GroupResource()
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
		if !proven && b.said[r] == nil { // the bundle has no Pod
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

// everywhere reports whether each namespace of the cluster has a list. Without a list of Namespaces (kubectl
// cluster-info dump --all-namespaces writes none), the namespaces with documents and the initial ones are all.
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

// shown reports whether a list is known to be unfiltered: in the output of kubectl a filter is not visible.
func (c *collected) shown() bool {
	return slices.ContainsFunc(c.lists, func(l *list) bool { return (l.all || l.typed) && l.flaw == "" })
}

// lacks says why a resource of the cluster is not read; empty: it is read.
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

// partial reports whether a part of a resource's objects can be judged: fewer objects lead to fewer findings. A missing
// Service or RoleBinding would lead to wrong findings.
func partial(r schema.GroupResource) bool { return r == pods || r.Group == "apps" }

// mayServe reports whether the cluster may have a resource. It does not have a custom resource if the collector got
// that answer, if there is no definition of it (where its vendor's programs run, in an unfiltered list), or if no
// object names a program of its vendor.
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

// programs notes the vendors whose programs an object of a Kubernetes type names: a Pod in its images, a Node in a
// condition or an annotation, or a Service. It notes the namespaces in which images of MetalLB run as homes.
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

// Parts names the resources that are judged in part only, and the command that collects what the bundle lacks.
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
		all = append(all, "The bundle does not have all that is judged. To complete it, unpack the bundle, "+
			"run this against the cluster, and save the output as a file in it: for list in "+
			strings.Join(slices.Sorted(maps.Keys(b.asked)), " ")+
			`; do echo "{\"request\":\"$list\"}"; kubectl get --raw $list; echo; done`)
	}
	return all
}

// note notes that the bundle lacks a requested resource. Of a custom resource it notes all lacking resources of the
// same vendor, and the definitions: only they say which of these resources exist.
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
