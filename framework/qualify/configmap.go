package qualify

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	apiyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/reference"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/topology/each"
)

type ConfigMap struct {
	Namespace, Name string
	Data            map[string]string
}

func (c ConfigMap) String() string {
	name := cmp.Or(c.Name, "without a name")
	if c.Namespace == "" {
		return name
	}
	return c.Namespace + "/" + name
}

type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Data  map[string]any `json:"data"`
	Items []object       `json:"items"` // of a List
}

// ReadConfigMap finds a ConfigMap in a stream of YAML or JSON documents, as helm template and kubectl get print it:
// the one with the name, or the only one. The error is one sentence.
func ReadConfigMap(stream io.Reader, name string) (ConfigMap, error) {
	documents := apiyaml.NewYAMLReader(bufio.NewReader(stream))
	var found []object
	for number := 1; ; number++ {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return ConfigMap{}, fmt.Errorf("reading document %d: %w", number, err)
		}
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		var any any
		if err := yaml.Unmarshal(text, &any); err != nil {
			return ConfigMap{}, fmt.Errorf("document %d is not YAML: %s", number, placeholder.OneLine(err))
		}
		if _, ok := any.(map[string]interface{}); !ok && any != nil {
			return ConfigMap{}, fmt.Errorf("document %d is not a Kubernetes object: it has no kind", number)
		}
		var o object
		if err := yaml.Unmarshal(text, &o); err != nil {
			if kind, _ := any.(map[string]interface{})["kind"].(string); kind != "ConfigMap" && kind != "List" {
				continue // another kind has fields of the same names
			}
			return ConfigMap{}, fmt.Errorf("document %d is not a ConfigMap: %s", number, placeholder.OneLine(err))
		}
		for _, o := range append(o.Items, o) {
			if o.Kind == "ConfigMap" {
				found = append(found, o)
			}
		}
	}
	if len(found) > 1 {
		named := each.Where(found, func(o object) bool { return o.Metadata.Name == name })
		if len(named) != 1 {
			expected := "expected one"
			if name != "" {
				expected += ", or one that is named " + name
			}
			return ConfigMap{}, fmt.Errorf("there are %d ConfigMaps (%s): %s", len(found),
				each.Joined(found, ", ", func(o object) string { return o.Metadata.Name }), expected)
		}
		found = named
	}
	if len(found) == 0 {
		return ConfigMap{}, errors.New("it contains no ConfigMap")
	}
	c := ConfigMap{Namespace: found[0].Metadata.Namespace, Name: found[0].Metadata.Name, Data: map[string]string{}}
	if len(found[0].Data) == 0 {
		return ConfigMap{}, fmt.Errorf("the ConfigMap %s has no data", c)
	}
	for _, key := range slices.Sorted(maps.Keys(found[0].Data)) {
		value, ok := found[0].Data[key].(string)
		if !ok {
			return ConfigMap{}, fmt.Errorf("the ConfigMap %s: data.%s is %v: expected a string, in quotes", c, key, found[0].Data[key])
		}
		c.Data[key] = value
	}
	return c, nil
}

// isConfigMap also matches a list that may have a ConfigMap, in YAML or JSON.
var isConfigMap = regexp.MustCompile(`(?m)^\s*"?kind"?:\s*"?(ConfigMap|List|ConfigMapList)\b`)

var isProxyConfig = regexp.MustCompile(`(?m)^\s*"?kind"?:\s*"?KubeProxyConfiguration\b`)

// Document returns text, or if it is a stream with one ConfigMap, the value of a key. The error is one sentence.
func Document(text []byte, key string) (string, error) {
	if !isConfigMap.Match(text) {
		return string(text), nil
	}
	c, err := ReadConfigMap(bytes.NewReader(text), "")
	if err != nil {
		return "", err
	}
	document, err := documentIn(c.Data, key)
	if err != nil {
		return "", fmt.Errorf("the ConfigMap %s %w", c, err)
	}
	return document, nil
}

func documentIn(data map[string]string, key string) (string, error) {
	document, there := data[key]
	for _, other := range slices.Sorted(maps.Keys(data)) {
		if !there && isProxyConfig.MatchString(data[other]) { // EKS has it under config
			document, there = data[other], true
		}
	}
	if !there {
		return "", fmt.Errorf("has no key %s", key)
	}
	return document, nil
}

// ConfigMapOf is the usual name of a component's ConfigMap; false if relapse does not compare its keys.
func ConfigMapOf(component string) (string, bool) {
	_, name, _ := strings.Cut(cilium.ConfigMap, "/")
	return name, component == configdrift.Component
}

// ciliumTable is the table of keys, with what the source of some versions states of them.
func ciliumTable(ctx context.Context, versions ...string) (*configdrift.Table, error) {
	var references []configdrift.Reference
	for _, version := range versions {
		r, err := reference.Of(ctx, version)
		if err != nil {
			return nil, err
		}
		references = append(references, r)
	}
	return configdrift.Cilium().With(references...), nil
}

func compared(table *configdrift.Table, inputs Inputs, data map[string]string) (Configuration, error) {
	c := Configuration{Drifts: []configdrift.Drift{}} // not nil: it was checked
	from, to := configdrift.Setup{Version: inputs.From, Config: data}, configdrift.Setup{Version: inputs.To, Config: data}
	for says, setup := range map[*string]configdrift.Setup{&c.RefusedFrom: from, &c.RefusedTo: to} {
		refusals, err := table.Refusals(setup)
		if err != nil {
			return c, err
		}
		all := each.Of(refusals, func(d configdrift.Drift) string { return strings.TrimSuffix(d.Says, ".") })
		*says = strings.Join(all, "; ")
	}
	drifts, err := table.Compare(from, to)
	c.Drifts = append(c.Drifts, drifts...)
	return c, err
}
