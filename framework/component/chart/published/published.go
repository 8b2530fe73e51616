// Package published takes a vendor's chart from the vendor's Go module.
package published

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/module"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/images"
)

type vendor struct{ module, folder string }

var vendors = map[string]vendor{
	"cilium":  {"github.com/cilium/cilium", "install/kubernetes/cilium"},
	"metallb": {"go.universe.tf/metallb", "charts/metallb"},
}

// Of returns the chart of a component's version, without a leading v, from the vendor's Go module of that version. It
// downloads the module if need be: an unavailable one is an *images.NotPublishedError or an *images.UnreachableError.
func Of(ctx context.Context, component, version string) (*chart.Chart, error) {
	v, there := vendors[component]
	if !there {
		return nil, fmt.Errorf("no chart of a component %q is known: expected one of %s",
			component, strings.Join(slices.Sorted(maps.Keys(vendors)), ", "))
	}
	dir, err := images.Download(ctx, module.Version{Path: v.module, Version: "v" + version})
	if err != nil {
		return nil, err
	}
	c, err := chart.Load(filepath.Join(dir, v.folder))
	if err != nil {
		return nil, err
	}
	if c.Version != version {
		return nil, fmt.Errorf("the module %s@v%s has the chart of version %s: expected its own", v.module, version, c.Version)
	}
	c.Module = dir
	return c, nil
}
