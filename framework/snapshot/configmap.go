package snapshot

import (
	"context"
	"fmt"
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

// ConfigMaps returns a source that reads ConfigMaps, named as namespace/name.
// It needs get on them.
func (c *Cluster) ConfigMaps(names ...string) func(context.Context) ([]ConfigMap, error) {
	return func(ctx context.Context) ([]ConfigMap, error) {
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
}
