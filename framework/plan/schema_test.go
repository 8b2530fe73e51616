package plan

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/relapse-dev/relapse/topology/must"
)

// The schema in testdata is a part of the one that Kubernetes publishes: the definitions
// and properties that the manifests use, word for word but for descriptions. With more
// than a mistyped field in a manifest it has to be made again.
var whole = flag.String("schema", "", "the whole swagger.json of Kubernetes, to take the schema in testdata from")

// Where the schema is from, and which of its definitions a manifest is.
const (
	publishedBy   = "k8s.io/kubernetes v1.34.4, api/openapi-spec/swagger.json"
	jobDefinition = "io.k8s.api.batch.v1.Job"
	storedSchema  = "testdata/kubernetes.json"
)

// definition is as much of a JSON schema as the manifests use.
type definition struct {
	Type                 string                 `json:"type,omitempty"`
	Ref                  string                 `json:"$ref,omitempty"`
	Properties           map[string]*definition `json:"properties,omitempty"`
	AdditionalProperties any                    `json:"additionalProperties,omitempty"`
	Items                *definition            `json:"items,omitempty"`
	Required             []string               `json:"required,omitempty"`
	Enum                 []any                  `json:"enum,omitempty"`
}

type document struct {
	Comment     string                 `json:"$comment"`
	Ref         string                 `json:"$ref"`
	Definitions map[string]*definition `json:"definitions"`
}

const definitions = "#/definitions/"

// vendorSchema is the schema of a manifest. It takes no property that the vendor's
// does not know.
func vendorSchema(t *testing.T, manifests []string) *jsonschema.Resolved {
	t.Helper()
	if *whole != "" {
		must.NoError(t, os.WriteFile(storedSchema, partOf(t, manifests), 0o644))
	}
	text := must.Read(t, storedSchema)
	var schema jsonschema.Schema
	must.NoError(t, json.Unmarshal(text, &schema))
	resolved, err := schema.Resolve(nil)
	must.NoError(t, err)
	return resolved
}

// partOf takes from the published schema what manifests use.
func partOf(t *testing.T, manifests []string) []byte {
	t.Helper()
	text := must.Read(t, *whole)
	var all document
	must.NoError(t, json.Unmarshal(text, &all))
	p := parts{whole: all.Definitions, taken: map[string]*definition{}}
	for _, m := range manifests {
		p.take(jobDefinition, decode(t, m), "the manifest")
	}
	for _, problem := range p.unknown {
		t.Error(problem)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", " ")
	must.NoError(t, encoder.Encode(document{"A part of " + publishedBy + ", Apache-2.0.", definitions + jobDefinition, p.taken}))
	return out.Bytes()
}

// parts collects the definitions that values use.
type parts struct {
	whole, taken map[string]*definition
	unknown      []string
}

func (p *parts) take(name string, value any, where string) {
	whole := p.whole[name]
	if p.taken[name] == nil {
		p.taken[name] = &definition{Type: whole.Type, Required: whole.Required, Enum: whole.Enum}
		if whole.Properties != nil {
			p.taken[name].Properties, p.taken[name].AdditionalProperties = map[string]*definition{}, false
		}
	}
	object, is := value.(map[string]any)
	if !is || whole.Properties == nil {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		property, known := whole.Properties[key]
		if !known {
			p.unknown = append(p.unknown, fmt.Sprintf("%s: %s has no property %q", where, name, key))
			continue
		}
		p.taken[name].Properties[key] = property
		p.follow(property, object[key], where+"."+key)
	}
}

// follow takes what a property refers to.
func (p *parts) follow(property *definition, value any, where string) {
	switch {
	case property.Ref != "":
		p.take(strings.TrimPrefix(property.Ref, definitions), value, where)
	case property.Items != nil:
		for _, element := range value.([]any) {
			p.follow(property.Items, element, where)
		}
	default:
		of, is := property.AdditionalProperties.(map[string]any)
		if ref, _ := of["$ref"].(string); is && ref != "" {
			for _, element := range value.(map[string]any) {
				p.follow(&definition{Ref: ref}, element, where)
			}
		}
	}
}
