package chart

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology"
)

// Path is where a value is: a key for each map. Keys may have dots in them.
type Path []string

// String writes the path as Helm's --set takes it, and quotes a key that has dots in it.
func (p Path) String() string {
	keys := slices.Clone(p)
	for i, key := range keys {
		if strings.Contains(key, ".") {
			keys[i] = fmt.Sprintf("%q", key)
		}
	}
	return strings.Join(keys, ".")
}

// Unread returns the paths of a release's values that change nothing of what the chart renders, in order: the result is
// the same without the value, and with another one. Values with a default in the chart are not asked about, as they may
// have no effect because of others. Objects with random contents, such as certificates, are not compared.
func (c *Chart) Unread(ctx context.Context, r Release) ([]Path, error) {
	candidates := c.withoutDefault(r.Values)
	rendered, err := c.Render(r)
	if err != nil || len(candidates) == 0 {
		return nil, err
	}
	again, err := c.Render(r)
	if err != nil {
		return nil, err
	}
	stable := rendered.byName()
	for name, o := range again.byName() {
		if !reflect.DeepEqual(o, stable[name]) {
			stable[name] = nil
		}
	}
	return c.unreadAmong(ctx, r, stable, candidates)
}

// Renders reports whether what runs, or a ConfigMap, may have a text of the values, whatever the schema says. It does
// if the chart refuses only values with variables. $(NAME) in pods does not count: Kubernetes replaces it.
func (c *Chart) Renders(r Release, text string) bool {
	r.anyType = true
	rendered, err := c.Render(r)
	if err != nil {
		r.Values = Merge(r.Values)
		for _, x := range placeholder.In(r.Values) {
			Path(x.Path).Put(nil, r.Values)
		}
		_, err = c.Render(r)
		return err == nil
	}
	return slices.ContainsFunc(rendered.Objects, func(o unstructured.Unstructured) bool {
		at := map[string]string{"ConfigMap": "data", "DaemonSet": "spec", "Deployment": "spec"}[o.GetKind()]
		unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata")
		runs, there := Get(o.Object, at)
		return there && !(at != "data" && strings.HasPrefix(text, "$(")) && strings.Contains(fmt.Sprint(runs), text)
	})
}

// unreadAmong tries all candidates at once: most are unread together, and each render of a large chart takes 0.2 s.
func (c *Chart) unreadAmong(ctx context.Context, r Release, stable map[string]map[string]any, candidates []Path) ([]Path, error) {
	unread := true
	for _, values := range variations(r.Values, candidates) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		other := r
		other.Values, other.anyType = values, true
		got, err := c.Render(other)
		if err != nil || !same(stable, got.byName()) {
			unread = false // what the chart refuses it has read
			break
		}
	}
	switch n := len(candidates); {
	case unread:
		return candidates, nil
	case n == 1:
		return nil, nil
	default:
		first, err := c.unreadAmong(ctx, r, stable, candidates[:n/2])
		if err != nil {
			return nil, err
		}
		second, err := c.unreadAmong(ctx, r, stable, candidates[n/2:])
		return slices.Concat(first, second), err
	}
}

// byName are all rendered objects, and the hooks, by kind, namespace and name.
func (r Rendered) byName() map[string]map[string]any {
	all := map[string]map[string]any{"notes": {"": r.Notes}}
	for _, objects := range [][]unstructured.Unstructured{r.Objects, r.Hooks} {
		for _, o := range objects {
			all[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = o.Object
		}
	}
	return all
}

// same compares objects with stable ones. A nil one differs from render to render, and is not compared.
func same(stable, objects map[string]map[string]any) bool {
	if len(stable) != len(objects) {
		return false
	}
	for name, o := range objects {
		if was, there := stable[name]; !there || was != nil && !reflect.DeepEqual(was, o) {
			return false
		}
	}
	return true
}

// withoutDefault are the paths of the values for which the chart's defaults have no key. What is below an empty map of
// the defaults is the user's own, such as labels.
func (c *Chart) withoutDefault(values map[string]any) []Path {
	var all []Path
	var walk func(values, defaults map[string]any, path Path)
	walk = func(values, defaults map[string]any, path Path) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			at := append(slices.Clone(path), key)
			inner, isMap := values[key].(map[string]any)
			switch was, there := defaults[key]; {
			case len(path) == 0 && key == "global": // of Helm itself: for charts that depend on each other
			case !there && isMap && len(inner) > 0:
				walk(inner, nil, at)
			case !there:
				all = append(all, at)
			case isMap:
				if was, ok := was.(map[string]any); ok && len(was) > 0 {
					walk(inner, was, at)
				}
			}
		}
	}
	walk(values, c.defaults, nil)
	return all
}

// variations are the values without the values at some paths, and with other values of the same types there.
func variations(values map[string]any, paths []Path) []map[string]any {
	without, other := Merge(values), Merge(values)
	for _, path := range paths {
		inner := func(m map[string]any) map[string]any {
			for _, key := range path[:len(path)-1] {
				m = m[key].(map[string]any)
			}
			return m
		}
		key := path[len(path)-1]
		delete(inner(without), key)
		inner(other)[key] = another(inner(values)[key])
	}
	return []map[string]any{without, other}
}

func another(value any) any {
	switch value := value.(type) {
	case bool:
		return !value
	case string:
		return value + "x"
	case []any:
		return append(slices.Clone(value), "x")
	case map[string]any:
		return map[string]any{"x": "x"}
	case nil:
		return "x"
	}
	return fmt.Sprint(value) + "1" // a number: what takes none but numbers refuses the text
}

// Hint is what a path that no chart reads may be meant to be: the nearest path with a default in one of the charts, or,
// for a key with dots, the same key as nested maps; empty if nothing is near.
func (p Path) Hint(charts ...*Chart) string {
	for _, key := range p {
		if parts := strings.Split(key, "."); len(parts) > 1 {
			return fmt.Sprintf("%q is one key with dots in it: expected %s: ...%s", key, strings.Join(parts, ": {"),
				strings.Repeat("}", len(parts)-1))
		}
	}
	var near []string
	var walk func(values map[string]any, path string)
	walk = func(values map[string]any, path string) {
		for key, value := range values {
			at := strings.TrimPrefix(path+"."+key, ".")
			if p.resembles(strings.Split(at, ".")) {
				near = append(near, at)
			}
			if inner, ok := value.(map[string]any); ok {
				walk(inner, at)
			}
		}
	}
	for _, c := range charts {
		walk(c.defaults, "")
	}
	slices.Sort(near)
	if nearest := topology.Similar(p.String(), slices.Compact(near)); nearest != "" {
		return "nearest: " + nearest
	}
	return ""
}

// resembles reports whether each key may be meant to be the key of the other path.
func (p Path) resembles(other Path) bool {
	return slices.EqualFunc(p, other, func(key, meant string) bool {
		return key == meant || topology.Similar(key, []string{meant}) != ""
	})
}
