package objects

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/topology"
)

// Types are schemas of a component's types, by group and kind (others have kinds of the same names), and API version.
type Types map[schema.GroupKind]map[string]map[string]any

// TypesOf are the types that CustomResourceDefinitions among objects define, in the versions that are served.
func TypesOf(all []unstructured.Unstructured) Types {
	types := Types{}
	for _, o := range all {
		kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
		group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
		versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
		for _, v := range versions {
			v, _ := v.(map[string]any)
			open, there, _ := unstructured.NestedMap(v, "schema", "openAPIV3Schema")
			if o.GetKind() != "CustomResourceDefinition" || !there || v["served"] == false {
				continue
			}
			groupKind := schema.GroupKind{Group: group, Kind: kind}
			if types[groupKind] == nil {
				types[groupKind] = map[string]map[string]any{}
			}
			types[groupKind][group+"/"+fmt.Sprint(v["name"])] = open
		}
	}
	return types
}

// Served are the versions of the API of an object's kind; none if it is not one of the types.
func (t Types) Served(o *unstructured.Unstructured) []string {
	return slices.Sorted(maps.Keys(t[o.GroupVersionKind().GroupKind()]))
}

// Said is what an API server says of an object.
type Said struct {
	// Unknown are fields that it drops, with the nearest known field. For kubectl it refuses the object.
	Unknown []string
	// Refused are reasons for which it refuses the object.
	Refused []string
}

// Prune removes the fields from an object that its type does not have. Rules in CEL are not applied. An object whose
// version is not served is one of the newest version.
func (t Types) Prune(o *unstructured.Unstructured) Said {
	var said Said
	served := t.Served(o)
	if len(served) == 0 {
		return said
	}
	versions := t[o.GroupVersionKind().GroupKind()]
	open, there := versions[o.GetAPIVersion()]
	if !there {
		open = versions[served[len(served)-1]]
	}
	metadata := o.Object["metadata"] // the API server's own
	delete(o.Object, "metadata")
	said.walk("", open, o.Object)
	o.Object["metadata"] = metadata
	return said
}

func (s *Said) refuse(path, format string, args ...any) {
	s.Refused = append(s.Refused, strings.TrimPrefix(path, ".")+": "+fmt.Sprintf(format, args...))
}

func (s *Said) walk(path string, schema map[string]any, value any) {
	if text, ok := value.(string); value == nil || ok && len(placeholder.In(text)) > 0 {
		return
	}
	if want, _ := schema["type"].(string); want != "" && schema["x-kubernetes-int-or-string"] != true && !hasType(want, value) {
		s.refuse(path, "expected %s", want) // it may be a secret
		return
	}
	switch value := value.(type) {
	case map[string]any:
		s.fields(path, schema, value)
	case []any:
		items, _ := schema["items"].(map[string]any)
		for i, item := range value {
			s.walk(fmt.Sprintf("%s[%d]", path, i), items, item)
		}
	default:
		s.scalar(path, schema, value)
	}
}

func hasType(want string, value any) bool {
	switch value.(type) {
	case map[string]any:
		return want == "object"
	case []any:
		return want == "array"
	case string:
		return want == "string"
	case bool:
		return want == "boolean"
	case int64:
		return want == "integer" || want == "number"
	}
	return want == "number"
}

func (s *Said) fields(path string, schema, fields map[string]any) {
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		at := path + "." + name
		property, there := properties[name].(map[string]any)
		others, any := schema["additionalProperties"].(map[string]any)
		switch {
		case there:
			s.walk(at, property, fields[name])
		case any:
			s.walk(at, others, fields[name])
		case len(schema) > 0 && schema["x-kubernetes-preserve-unknown-fields"] != true && schema["additionalProperties"] != true:
			near := topology.Similar(name, slices.Sorted(maps.Keys(properties)))
			if near != "" {
				near = " (nearest is " + near + ")"
			}
			s.Unknown = append(s.Unknown, strings.TrimPrefix(at, ".")+near)
			delete(fields, name)
		}
	}
	required, _ := schema["required"].([]any)
	for _, name := range required {
		name := fmt.Sprint(name)
		property, _ := properties[name].(map[string]any)
		if _, there := fields[name]; !there && name != "metadata" && property["default"] == nil {
			s.refuse(path+"."+name, "it is missing")
		}
	}
}

func (s *Said) scalar(path string, schema map[string]any, value any) {
	number, isNumber := value.(int64)
	text, isText := value.(string)
	allowed, _ := schema["enum"].([]any)
	pattern, _ := schema["pattern"].(string)
	switch {
	case len(allowed) > 0 && !slices.ContainsFunc(allowed, func(a any) bool { return fmt.Sprint(a) == fmt.Sprint(value) }):
		s.refuse(path, "%v: expected one of %v", value, allowed)
	case isText && pattern != "" && !matches(pattern, text):
		s.refuse(path, "it does not match its pattern")
	case isNumber && schema["minimum"] != nil && number < integer(schema["minimum"]):
		s.refuse(path, "%d: expected %v or more", number, schema["minimum"])
	case isNumber && schema["maximum"] != nil && number > integer(schema["maximum"]):
		s.refuse(path, "%d: expected %v or less", number, schema["maximum"])
	}
}

func matches(pattern, text string) bool {
	expression, err := regexp.Compile(pattern)
	return err != nil || expression.MatchString(text)
}

func integer(value any) int64 {
	if f, ok := value.(float64); ok {
		return int64(f)
	}
	i, _ := value.(int64)
	return i
}
