package qualify

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	apiyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// ConfigMap is one, as far as it is looked at.
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

// object is any of Kubernetes', as far as it is looked at.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Data  map[string]any `json:"data"`
	Items []object       `json:"items"` // of a List
}

// ReadConfigMap finds a ConfigMap in a stream of YAML or JSON documents, such as helm
// template and kubectl get print: the one that has the name, or the only one. The
// error is one sentence about what is wrong with the stream.
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
			return ConfigMap{}, fmt.Errorf("document %d is no YAML: %s", number, oneLine(err))
		}
		if _, is := any.(map[string]interface{}); !is && any != nil {
			return ConfigMap{}, fmt.Errorf("document %d is no object of Kubernetes: it has no kind", number)
		}
		var o object
		if err := yaml.Unmarshal(text, &o); err != nil {
			if kind, _ := any.(map[string]interface{})["kind"].(string); kind != "ConfigMap" && kind != "List" {
				continue // its data is another's
			}
			return ConfigMap{}, fmt.Errorf("document %d is no ConfigMap: %s", number, oneLine(err))
		}
		for _, o := range append(o.Items, o) {
			if o.Kind == "ConfigMap" {
				found = append(found, o)
			}
		}
	}
	if len(found) > 1 {
		var names []string
		named := slices.DeleteFunc(slices.Clone(found), func(o object) bool { return o.Metadata.Name != name })
		for _, o := range found {
			names = append(names, o.Metadata.Name)
		}
		if len(named) != 1 {
			return ConfigMap{}, fmt.Errorf("there are %d ConfigMaps (%s): expected one, or one that is named %s", len(found), strings.Join(names, ", "), name)
		}
		found = named
	}
	if len(found) == 0 {
		return ConfigMap{}, errors.New("there is no ConfigMap in it")
	}
	c := ConfigMap{Namespace: found[0].Metadata.Namespace, Name: found[0].Metadata.Name, Data: map[string]string{}}
	if len(found[0].Data) == 0 {
		return ConfigMap{}, fmt.Errorf("the ConfigMap %s has no data", c)
	}
	for _, key := range slices.Sorted(maps.Keys(found[0].Data)) {
		value, is := found[0].Data[key].(string)
		if !is {
			return ConfigMap{}, fmt.Errorf("the ConfigMap %s: data.%s is %v: expected text, in quotes", c, key, found[0].Data[key])
		}
		c.Data[key] = value
	}
	return c, nil
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(strings.NewReplacer("error converting YAML to JSON: ", "", "yaml: ", "").Replace(err.Error())), " ")
}
