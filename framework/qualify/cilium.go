package qualify

import (
	"context"
	"strings"

	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/component/cilium/reference"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/topology/each"
)

// ConfigMapOf is the name that the ConfigMap of a component usually has; false if relapse does
// not compare the component's keys.
func ConfigMapOf(component string) (string, bool) {
	_, name, _ := strings.Cut(cilium.ConfigMap, "/")
	return name, component == configdrift.Component
}

// ciliumTable is the table of Cilium's keys, with what two versions themselves state.
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

func compared(table *configdrift.Table, in Inputs, data map[string]string) (Configuration, error) {
	c := Configuration{Drifts: []configdrift.Drift{}} // it was checked
	from, to := configdrift.Setup{Version: in.From, Config: data}, configdrift.Setup{Version: in.To, Config: data}
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
