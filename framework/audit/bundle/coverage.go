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
	initial = map[string]bool{"default": true, "kube-node-lease": true, "kube-public": true, "kube-system": true}
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
	// kind is of its objects, such as Node.
	kind    string
	objects map[key]object
	lists   []*list
	// of are the namespaces of whose objects there are lists, and lacks is why these are not all objects of the
	// cluster; empty: they are.
	of    map[string]bool
	lacks string
}

type key struct{ namespace, name string }

type object struct {
	json []byte
	// at is where it stands, FILE:LINE.
	at, uid  string
	revision uint64
	lists    []*list
}

// list is a list of one resource, or what one of several has of it.
type list struct {
	file string
	// revision is that of the list, or of its newest object.
	revision uint64
	// typed is set if it is as the API server has answered, and in has the namespaces of its objects.
	typed bool
	in    map[string]bool
	// all is set if what has written it says that it is of all namespaces, and of all objects in them.
	all bool
	// page is set if it is a page that is not the last.
	page bool
	// flaw is why it cannot be all that was asked for.
	flaw string
	// part is the namespace that it is of; empty: of all.
	part string
}

func (b *Bundle) of(r schema.GroupVersionResource, kind string) *collected {
	c := b.kinds[r]
	if c == nil {
		c = &collected{kind: kind, objects: map[key]object{}, of: map[string]bool{}}
		b.kinds[r] = c
	}
	return c
}

// settle decides, once all files are read, what is all of the cluster: which namespaces there are is known then.
func (b *Bundle) settle() {
	for r, c := range b.kinds {
		paged := map[uint64]bool{}
		for _, l := range c.lists {
			l.part, paged[l.revision] = b.partOf(r.GroupResource(), l), paged[l.revision] || l.page
		}
		for _, l := range c.lists {
			if paged[l.revision] {
				l.flaw = "its list was collected in pages"
			}
		}
		c.newest(r.Group == "apps")
		for _, l := range c.lists {
			switch {
			case l.flaw != "":
				c.lacks = l.flaw
			case l.part != "":
				c.of[l.part] = true
			}
		}
	}
	// Whether all namespaces are there counts for the others, and so do Pods for Nodes.
	order := func(r schema.GroupVersionResource) int {
		return slices.Index([]schema.GroupResource{nodes, pods, slicesOf, namespaces}, r.GroupResource())
	}
	later := func(x, y schema.GroupVersionResource) int { return cmp.Compare(order(y), order(x)) }
	for _, r := range slices.SortedFunc(maps.Keys(b.kinds), later) {
		c := b.kinds[r]
		whole := slices.ContainsFunc(c.lists, func(l *list) bool { return l.flaw == "" && l.part == "" })
		if whole || len(c.of) > 0 && b.everywhere(c) || r.GroupResource() == nodes && b.allNodes(c) {
			c.lacks = b.without(r.GroupResource(), c)
		} else if c.lacks == "" && len(c.of) > 0 {
			c.lacks = "only namespace " + strings.Join(slices.Sorted(maps.Keys(c.of)), " and namespace ") +
				" was collected (kubectl get " + r.Resource + " -A -o yaml has all)"
		} else if c.lacks == "" {
			c.lacks = "it has single objects, but no complete list"
		}
	}
}

// sysdump are files of lists of all namespaces in a sysdump of Cilium. Its other files may have one namespace.
var sysdump = regexp.MustCompile(`^k8s-[a-z0-9]+-\d{8}-\d{6}\.yaml$`)

// unscoped reports whether objects of a resource are in no namespace.
func unscoped(r schema.GroupResource) bool {
	return r == nodes || r == namespaces || r == definitions || strings.HasPrefix(r.Resource, "cluster") ||
		vendors[r.Group] != nil && !strings.HasSuffix(r.Group, "metallb.io")
}

// partOf is the namespace that a list is of; empty: all of them. That needs a proof: kubectl get without
// --all-namespaces, and a request for one namespace, lead to a list that looks the same. A list with objects of two
// namespaces is of all of them, and MetalLB reads no namespace but its own.
func (b *Bundle) partOf(r schema.GroupResource, l *list) string {
	one, folder := "", ""
	for _, name := range strings.FieldsFunc(l.file, func(c rune) bool { return c == '/' || c == '.' }) {
		if b.namespaces[name] || initial[name] {
			folder = name // each namespace may have its folder, or its file
		}
	}
	for one = range l.in {
	}
	l.all = l.all || b.sysdumps[path.Dir(l.file)] && sysdump.MatchString(path.Base(l.file))
	switch {
	case l.all, unscoped(r), len(l.in) > 1, strings.HasSuffix(r.Group, "metallb.io") && b.homes[one]:
		return ""
	case len(l.in) == 0 && folder == "":
		l.flaw = cmp.Or(l.flaw, "an empty list, and it is not known whether of all namespaces")
	case len(l.in) == 0:
		return folder
	}
	return one
}

var digits = regexp.MustCompile(`\d+`)

// newest takes out what a newer list no longer has. Several lists of workloads may be of several labels: they are of one
// selection if their files are of one name, but for a time.
func (c *collected) newest(selected bool) {
	type scope struct{ part, file string }
	of := func(l *list) scope {
		if selected {
			return scope{l.part, digits.ReplaceAllString(l.file, "")}
		}
		return scope{part: l.part}
	}
	type newest struct {
		revision uint64
		lists    int // of that revision
	}
	last, torn := map[scope]newest{}, map[scope]bool{}
	for _, l := range c.lists {
		n := last[of(l)]
		switch {
		case l.flaw != "" || n.lists > 0 && n.revision > l.revision:
			continue
		case n.revision < l.revision:
			n = newest{revision: l.revision}
		}
		last[of(l)] = newest{n.revision, n.lists + 1}
	}
	for k, o := range c.objects {
		seen, scopes := o.revision, map[scope]int{{}: 0, {part: k.namespace}: 0}
		for _, l := range o.lists {
			seen = max(seen, l.revision)
			if scopes[of(l)] += 0; l.flaw == "" && l.revision == last[of(l)].revision {
				scopes[of(l)]++
			}
		}
		for s, in := range scopes {
			switch n := last[s]; {
			case n.lists > 0 && n.revision > seen:
				delete(c.objects, k)
			case n.lists > in && n.revision == seen && len(o.lists) > 0:
				torn[s] = true
			}
		}
	}
	for _, l := range c.lists {
		if torn[of(l)] {
			l.flaw = "it has two lists that differ, and which of them is newer is not known"
		}
	}
}

// everywhere reports whether each namespace of the cluster has a list. Without a list of Namespaces those that each
// cluster has are all there: kubectl cluster-info dump --all-namespaces has written it.
func (b *Bundle) everywhere(c *collected) bool {
	needed := maps.Clone(b.namespaces)
	if why := b.lacks(namespaces.WithVersion("v1")); why != "" && b.kinds[namespaces.WithVersion("v1")] == nil {
		maps.Copy(needed, initial)
	} else if why != "" {
		return false
	}
	for n := range needed {
		if !c.of[n] {
			return false
		}
	}
	return true
}

// allNodes reports whether single Nodes are all of the cluster, as oc adm inspect writes them: no DaemonSet is to have
// more pods than there are Nodes, and one has as many.
func (b *Bundle) allNodes(c *collected) bool {
	most := 0
	for _, o := range b.objectsOf(schema.GroupResource{Group: "apps", Resource: "daemonsets"}) {
		var set struct {
			Status struct{ DesiredNumberScheduled int }
		}
		if json.Unmarshal(o.json, &set) == nil {
			most = max(most, set.Status.DesiredNumberScheduled)
		}
	}
	return most > 0 && most == len(c.objects)
}

// objectsOf are the objects of all versions of a resource.
func (b *Bundle) objectsOf(r schema.GroupResource) map[key]object {
	all := map[key]object{}
	for of, c := range b.kinds {
		if of.GroupResource() == r {
			maps.Copy(all, c.objects)
		}
	}
	return all
}

// without says what a list of the whole cluster would have, and this one has not: it was cut off, or selected by a
// label; empty: nothing is missing, as far as can be seen.
func (b *Bundle) without(r schema.GroupResource, c *collected) string {
	missing := func(what string) string { return "the list is incomplete: " + what + " is missing" }
	if k, is := always[r]; is {
		if _, there := c.objects[k]; !there {
			return missing(strings.TrimPrefix(k.namespace+"/"+k.name, "/"))
		}
	}
	if c.proven() && (r == namespaces || r == nodes) {
		return "" // others may be of another moment
	}
	switch r {
	case namespaces:
		for of, c := range b.kinds {
			for k := range c.objects {
				if _, there := b.kinds[r.WithVersion("v1")].objects[key{"", k.namespace}]; k.namespace != "" && !there && of.GroupResource() != r {
					return missing(k.namespace)
				}
			}
		}
	case nodes: // those that have Pods are there
		for _, o := range b.objectsOf(pods) {
			var pod struct{ Spec struct{ NodeName string } }
			_ = json.Unmarshal(o.json, &pod)
			if _, there := c.objects[key{"", pod.Spec.NodeName}]; !there && pod.Spec.NodeName != "" {
				return missing(pod.Spec.NodeName + ", where a Pod is,")
			}
		}
		if len(b.objectsOf(pods)) == 0 {
			return unchecked(c, "Pods")
		}
	case leases:
		for k, o := range c.objects {
			var lease struct{ Spec struct{ RenewTime time.Time } }
			if k.namespace == "kube-node-lease" && json.Unmarshal(o.json, &lease) == nil && lease.Spec.RenewTime.After(b.renewed) {
				b.renewed = lease.Spec.RenewTime
			}
		}
		if b.renewed.IsZero() {
			return missing("each Lease of kube-node-lease")
		}
	case definitions:
		for of := range b.kinds {
			if _, there := c.objects[key{"", of.GroupResource().String()}]; vendors[of.Group] != nil && !there {
				return missing(of.GroupResource().String())
			}
		}
	case ciliumNodes:
		for k := range b.objectsOf(nodes) {
			if _, there := c.objects[k]; !there && !c.shown() {
				return missing(k.name)
			}
		}
	case services:
		return b.withoutBackends(r, c)
	case pods:
		return cmp.Or(c.selected(), b.withoutBackends(r, c))
	}
	if r.Group == "apps" {
		return c.selected()
	}
	return ""
}

// proven reports whether a list says that it is of all objects, and that nothing was selected.
func (c *collected) proven() bool {
	return slices.ContainsFunc(c.lists, func(l *list) bool { return l.all && l.flaw == "" })
}

// shown reports whether a list is as the API server has answered: kubectl shows one that was selected as all of them.
func (c *collected) shown() bool {
	return slices.ContainsFunc(c.lists, func(l *list) bool { return (l.all || l.typed) && l.flaw == "" })
}

// selected says by which label the objects may have been selected: one that all of them have.
func (c *collected) selected() string {
	var common map[string]string
	for _, o := range c.objects {
		var of struct {
			Metadata struct{ Labels map[string]string }
		}
		_ = json.Unmarshal(o.json, &of)
		if common == nil {
			common = of.Metadata.Labels
		}
		maps.DeleteFunc(common, func(name, _ string) bool { _, has := of.Metadata.Labels[name]; return !has })
		if len(common) == 0 {
			return ""
		}
	}
	if c.proven() || len(c.objects) < 2 {
		return ""
	}
	return "it may have been filtered (kubectl -l): all its objects have the label " + slices.Min(slices.Collect(maps.Keys(common)))
}

func unchecked(c *collected, by string) string {
	return fmt.Sprintf("%ss may be incomplete, and there are no %s to check them against (kubectl get %s -A -o yaml has them)",
		c.kind, by, strings.ToLower(by))
}

// withoutBackends compares Pods, or Services, with EndpointSlices, which may have changed a moment before or after.
// Half of them are enough where the list says that nothing was selected.
func (b *Bundle) withoutBackends(r schema.GroupResource, c *collected) string {
	all, there, one, share := 0, 0, "", 10
	for k, o := range b.objectsOf(slicesOf) {
		var of struct {
			Metadata  struct{ Labels map[string]string }
			Endpoints []struct{ TargetRef struct{ Kind, Name string } }
		}
		_ = json.Unmarshal(o.json, &of)
		var named []string
		if service := of.Metadata.Labels[discoveryv1.LabelServiceName]; r == services && service != "" {
			named = []string{service}
		}
		for _, e := range of.Endpoints {
			if r == pods && e.TargetRef.Kind == "Pod" {
				named = append(named, e.TargetRef.Name)
			}
		}
		for _, name := range named {
			all++
			if _, is := c.objects[key{k.namespace, name}]; is {
				there++
			} else {
				one = k.namespace + "/" + name
			}
		}
	}
	if c.proven() {
		share = 2
	}
	switch {
	case share*(all-there) > all:
		return fmt.Sprintf("the list is incomplete: %d of the %d %s that EndpointSlices name are missing, such as %s", all-there, all, r.Resource, one)
	case !c.proven() && !b.everywhere(c) && (all == 0 || b.lacks(slicesOf.WithVersion("v1")) != ""):
		return unchecked(c, "EndpointSlices")
	}
	return ""
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
func (b *Bundle) known(r schema.GroupResource) bool {
	programs, served := vendors[r.Group], false
	for of := range b.kinds {
		served = served || of.GroupResource() == r
	}
	switch {
	case programs == nil || served:
		return true
	case b.unserved[r.Resource] && b.wanted[r] == 1: // the collector may have asked for another version
		return false
	case b.lacks(definitions.WithVersion("v1")) == "" && (!b.named[r.Group] || b.kinds[definitions.WithVersion("v1")].shown()):
		return len(b.Where("CustomResourceDefinition", "", r.String())) > 0
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

// note notes that a resource was asked for in vain. Whether there are custom ones, definitions tell.
func (b *Bundle) note(r schema.GroupVersionResource) {
	if vendors[r.Group] != nil && b.Lacks() != "" && b.lacks(definitions.WithVersion("v1")) != "" {
		r = definitions.WithVersion("v1")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[Path(r)] = true
}

// Path is the path of a list of all objects of a resource.
func Path(r schema.GroupVersionResource) string {
	if r.Group == "" {
		return "/api/" + r.Version + "/" + r.Resource
	}
	return "/apis/" + r.Group + "/" + r.Version + "/" + r.Resource
}
