package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Merge returns the values of several files: of two values with the same path the later one
// applies, as with Helm.
func Merge(files ...map[string]any) map[string]any {
	all := map[string]any{}
	for _, file := range files {
		merge(all, file)
	}
	return all
}

// merge puts the values of one map into another. Helm's own function prints a warning where
// one has a map and the other has none.
func merge(into, values map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		from, isMap := values[key].(map[string]any)
		if !isMap {
			into[key] = values[key]
			continue
		}
		to, isMap := into[key].(map[string]any)
		if !isMap {
			to = map[string]any{}
			into[key] = to
		}
		merge(to, from)
	}
}

// Get returns the value at a path such as a.b.c.
func Get(values map[string]any, path string) (any, bool) {
	first, rest, deeper := strings.Cut(path, ".")
	value, there := values[first]
	if !there || !deeper {
		return value, there
	}
	inner, _ := value.(map[string]any)
	return Get(inner, rest)
}

// Set sets the value at a path.
func Set(values map[string]any, path string, value any) {
	for {
		first, rest, deeper := strings.Cut(path, ".")
		if !deeper {
			values[first] = value
			return
		}
		inner, is := values[first].(map[string]any)
		if !is {
			inner = map[string]any{}
			values[first] = inner
		}
		values, path = inner, rest
	}
}

// Remove removes the value at a path, so that the chart's default applies.
func Remove(values map[string]any, path string) {
	first, rest, deeper := strings.Cut(path, ".")
	if !deeper {
		delete(values, first)
		return
	}
	if inner, is := values[first].(map[string]any); is {
		Remove(inner, rest)
	}
}

// Put gives a value that some values have at this path to others, or removes it from them if those
// have none.
func (p Path) Put(from, to map[string]any) {
	key := p[0]
	value, there := from[key]
	if len(p) == 1 {
		if there {
			to[key] = value
		} else {
			delete(to, key)
		}
		return
	}
	source, _ := value.(map[string]any)
	if inner, is := to[key].(map[string]any); is {
		p[1:].Put(source, inner)
	}
}

// Default returns the chart's own value at a path.
func (c *Chart) Default(path string) (any, bool) { return Get(c.defaults, path) }

// Setting is a value that a lab sets, whatever the user's values say.
type Setting struct {
	Path  string // such as envoy.enabled
	Value any    // nil takes the chart's default away
	Why   string
}

// String is the setting as helm --set takes it.
func (s Setting) String() string {
	if s.Value == nil {
		return s.Path + "=null"
	}
	return fmt.Sprintf("%s=%v", s.Path, s.Value)
}

// With returns a copy of values that has the settings.
func With(values map[string]any, settings []Setting) map[string]any {
	all := Merge(values)
	for _, s := range settings {
		Set(all, s.Path, s.Value)
	}
	return all
}

// Replacement is a value that a lab cannot have as the user or the chart has it.
type Replacement struct {
	Path string `json:"path"` // such as ipam.operator.clusterPoolIPv4MaskSize
	// Was and Is are JSON. Is is empty if the value is left to the chart's default.
	Was string `json:"was"`
	Is  string `json:"is"`
	// Users is set if the value was the user's, and not the chart's default.
	Users bool   `json:"users"`
	Why   string `json:"why"` // a clause with a subject
}

func (r Replacement) String() string {
	was, is := r.Was, r.Is
	if !r.Users {
		was += ", the chart's default,"
	}
	if is == "" {
		is = "the chart's default"
	}
	return fmt.Sprintf("%s: %s is replaced by %s: %s", r.Path, was, is, r.Why)
}

// Text is a value as JSON.
func Text(value any) string {
	out, err := json.Marshal(value)
	if err != nil { // not of a YAML file
		return fmt.Sprint(value)
	}
	return string(out)
}

// Shown is a value as a report has it: of values that may have secrets the names alone.
func Shown(path string, value any) string {
	switch path[strings.LastIndexByte(path, '.')+1:] {
	case "tls", "extraEnv", "extraObjects", "extraContainers", "extraInitContainers", "initContainers":
		return Text(masked("", value))
	}
	return Text(value)
}

func masked(key string, value any) any {
	switch value := value.(type) {
	case string:
		if key != "name" && key != "kind" {
			return "***"
		}
	case []any:
		all := make([]any, len(value))
		for i, item := range value {
			all[i] = masked("", item)
		}
		return all
	case map[string]any:
		all := map[string]any{}
		for key, item := range value {
			all[key] = masked(key, item)
		}
		return all
	}
	return value
}
