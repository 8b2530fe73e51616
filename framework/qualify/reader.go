package qualify

import (
	"context"

	"github.com/relapse-dev/relapse/images"
)

// ConfigReader is declared for components whose own code can be asked, without a
// cluster, what it makes of a ConfigMap.
type ConfigReader interface {
	// ConfigMap is the name that the component's ConfigMap usually has.
	ConfigMap() string
	// Image is the image that holds the code of a version.
	Image(version string) string
	// Read asks both versions of the inputs about a configuration. step begins a step of
	// the progress, and returns what ends it. NotAsked of the result is set if the code
	// of a version is not available or does not build.
	Read(ctx context.Context, c *images.Catalogue, in Inputs, config ConfigMap, step func(name string) func(error)) (Configuration, error)
}

// readers are all that are declared, by component.
var readers = map[string]ConfigReader{"cilium": ciliumReader{}}

// ReaderOf is the reader of a component; false if it has none.
func ReaderOf(component string) (ConfigReader, bool) {
	reader, there := readers[component]
	return reader, there
}
