package snapshot

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConfigMap is a Kubernetes ConfigMap, as far as it is text.
type ConfigMap struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Data      map[string]string `json:"data"`
}

func (m ConfigMap) String() string { return m.Namespace + "/" + m.Name }

// ConfigMaps is the source of one ConfigMap, named as namespace/name. It needs
// get on it. A collector that is opened for several reads all of them, and a
// ConfigMap that is not there is not read.
func ConfigMaps(name string) Source { return Source{kind: configMaps, name: name} }

var configMaps = register(kind{
	name: "ConfigMaps",
	open: func(o *opening, names []string) (read, error) {
		c, err := o.cluster()
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, s *Snapshot) {
			s.ConfigMaps = list(ctx, func(ctx context.Context) ([]ConfigMap, error) { return c.configMaps(ctx, names) })
		}, nil
	},
	copy: func(to, from *Snapshot, names []string) {
		to.ConfigMaps = from.ConfigMaps
		to.ConfigMaps.Items = slices.DeleteFunc(slices.Clone(from.ConfigMaps.Items), func(m ConfigMap) bool {
			return !slices.Contains(names, m.String())
		})
	},
	parts: func(s Snapshot) []part { return []part{listPart("ConfigMaps", s.ConfigMaps, ConfigMap.state)} },
})

func (m ConfigMap) state(to *statements) {
	for key, value := range m.Data {
		to.add(API, "ConfigMap "+m.String(), "ConfigMap "+m.String()+", "+key, "", "%q", value)
	}
}

func (c *cluster) configMaps(ctx context.Context, names []string) ([]ConfigMap, error) {
	maps := make([]ConfigMap, 0, len(names))
	for _, name := range names {
		namespace, name, _ := strings.Cut(name, "/")
		o, err := c.core.ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading ConfigMap %s/%s: %w", namespace, name, err)
		}
		maps = append(maps, ConfigMap{Namespace: namespace, Name: name, Data: o.Data})
	}
	return maps, nil
}
