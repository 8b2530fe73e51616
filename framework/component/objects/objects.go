// Package objects adapts a user's objects of a component's types to a lab, and says what schemas find wrong with them.
package objects

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/framework/component/workload"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Adapted are a user's objects as a lab gets them.
type Adapted struct {
	Objects []*unstructured.Unstructured
	// Replaced are what the lab has in place of the user's objects and fields, a clause each.
	Replaced []string
}

// Say adds a clause to Replaced.
func (a *Adapted) Say(format string, args ...any) {
	a.Replaced = append(a.Replaced, fmt.Sprintf(format, args...))
}

// Of returns the objects of a kind.
func (a *Adapted) Of(kind string) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(a.Objects), func(o *unstructured.Unstructured) bool { return o.GetKind() != kind })
}

// Own adds an object of the lab's own, for what the user's objects lack.
func (a *Adapted) Own(why string, o *unstructured.Unstructured) {
	a.Say("%s: %s: the lab has its own", o.GetKind(), why)
	a.Objects = append(a.Objects, o)
}

// Read reads objects (YAML documents) without annotations, which have no effect, and without what kubectl get adds.
func Read(text string) ([]*unstructured.Unstructured, error) {
	all, err := workload.Objects(text)
	for _, o := range all {
		metadata := map[string]any{}
		for _, field := range []string{"name", "namespace", "labels"} {
			if value, there := chart.Get(o.Object, "metadata."+field); there && value != nil {
				metadata[field] = value
			}
		}
		o.Object["metadata"] = metadata
		delete(o.Object, "status")
		delete(o.Object, "sops") // its own data
	}
	return all, err
}

// Missing returns an error that names the variables of the objects that have no value.
func (a *Adapted) Missing() error {
	return placeholder.Missing(slices.Concat(each.Of(a.Objects, func(o *unstructured.Unstructured) []placeholder.Variable {
		return placeholder.In(o.Object)
	})...))
}

// Fields are fields of an object, in which a lab may differ.
type Fields struct {
	*Adapted
	Name   string // of the object, for clauses
	Values map[string]any
}

// Spec replaces an object's spec by a copy and returns it. A spec that is no map is an error and becomes empty.
func (a *Adapted) Spec(o *unstructured.Unstructured) (Fields, error) {
	spec, _, err := unstructured.NestedMap(o.Object, "spec")
	if spec == nil {
		spec = map[string]any{}
	}
	o.Object["spec"] = spec
	return Fields{a, Name(o), spec}, err
}

// Drop removes fields, by their paths.
func (f Fields) Drop(why string, paths ...string) {
	for _, path := range paths {
		value, there := chart.Get(f.Values, path)
		if !there {
			continue
		}
		f.Say("%s: %s: %s is removed: %s", f.Name, path, chart.Shown(path, value), why)
		chart.Remove(f.Values, path)
	}
}

// Set gives a field the lab's value.
func (f Fields) Set(field string, value any) {
	if was, there := f.Values[field]; there && fmt.Sprint(was) != fmt.Sprint(value) {
		f.Say("%s: %s: %s is replaced by %v, the lab's", f.Name, field, chart.Shown(field, was), value)
	}
	f.Values[field] = value
}

// Keep removes the texts from a list for which keep is false.
func (f Fields) Keep(field, why string, keep func(string) bool) {
	items, _ := f.Values[field].([]any)
	var rest []any
	for _, item := range items {
		if keep(fmt.Sprint(item)) {
			rest = append(rest, item)
			continue
		}
		f.Say("%s: %s: %s is removed: %s", f.Name, field, chart.Shown(field, item), why)
	}
	if len(items) > 0 {
		f.Values[field] = rest
	}
}

// Selector is a label selector of an object; nil without a value, which has another meaning in each field.
func Selector(value any) *metav1.LabelSelector {
	fields, ok := value.(map[string]any)
	var s metav1.LabelSelector
	if !ok || runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &s) != nil {
		return nil
	}
	return &s
}

// Selects reports whether a selector selects labels; nil selects none.
func Selects(s *metav1.LabelSelector, set map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(set))
}

// LabelsFor are labels that a selector selects, and that include others; false if there are none.
func LabelsFor(s *metav1.LabelSelector, with map[string]string) (map[string]string, bool) {
	all := map[string]string{}
	maps.Copy(all, with)
	if s == nil {
		return nil, false
	}
	maps.Copy(all, s.MatchLabels)
	for _, e := range s.MatchExpressions {
		if _, there := all[e.Key]; there || e.Operator != metav1.LabelSelectorOpIn && e.Operator != metav1.LabelSelectorOpExists {
			continue
		}
		all[e.Key] = "lab"
		if len(e.Values) > 0 {
			all[e.Key] = e.Values[0]
		}
	}
	for key, value := range with {
		if all[key] != value {
			return nil, false
		}
	}
	return all, Selects(s, all)
}

// Overlap refuses a text that is no range of addresses, or overlaps a lab's networks. A variable is no error.
func Overlap(text string, networks []netip.Prefix) error {
	if len(placeholder.In(text)) > 0 {
		return nil
	}
	r, err := snapshot.ParseAddressRange(text)
	if err != nil {
		return fmt.Errorf("%q: expected a range such as 192.0.2.0/24 or 192.0.2.1-192.0.2.9", text)
	}
	i := slices.IndexFunc(networks, func(n netip.Prefix) bool {
		return n.Contains(r.First) || n.Contains(r.Last) || r.Contains(n.Addr())
	})
	if i >= 0 {
		return fmt.Errorf("%s overlaps %s, a network of the lab: expected --subnets with a prefix that the pools leave free", text, networks[i])
	}
	return nil
}

// IPv4 reports whether a range of addresses is one of IPv4.
func IPv4(text string) bool {
	r, err := snapshot.ParseAddressRange(text)
	return err == nil && r.First.Is4()
}

// IPv6 reports whether a range of addresses is one of IPv6.
func IPv6(text string) bool {
	r, err := snapshot.ParseAddressRange(text)
	return err == nil && r.First.Is6()
}

// Name is the kind and the name of an object, for clauses.
func Name(o *unstructured.Unstructured) string {
	return strings.TrimSpace(o.GetKind() + " " + o.GetName())
}
