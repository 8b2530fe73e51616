package releasefile

import (
	"cmp"
	"fmt"

	"github.com/relapse-dev/relapse/framework/component/chart"
	"github.com/relapse-dev/relapse/framework/component/placeholder"
)

// Given are values as a user's files have them.
type Given struct {
	// Sources are the files, the first one first, with the object of each that has the values.
	Sources []string
	// Version is that of the chart, if a file states it.
	Version string
	// Told are sentences about what was not read.
	Told   []string
	Values map[string]any
}

// ReadAll finds the values of a component's chart in files, with values for their variables.
func ReadAll(component string, vars placeholder.Values, files ...File) (Given, error) {
	var g Given
	var all []map[string]any
	for _, f := range files {
		r, err := Read(component, f, vars)
		if err != nil {
			return Given{}, fmt.Errorf("%s: %w", f.Name, err)
		}
		source := f.Name
		if r.Object != "" {
			source += " (" + r.Object + ")"
		}
		g.Sources, all = append(g.Sources, source), append(all, r.Values)
		g.Version = cmp.Or(r.Version, g.Version)
		for _, says := range r.Told {
			g.Told = append(g.Told, f.Name+": "+says)
		}
	}
	g.Values = chart.Merge(all...)
	return g, nil
}
