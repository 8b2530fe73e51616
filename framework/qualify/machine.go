package qualify

import (
	"context"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect/versionlab"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/keptlab"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/images"
)

// Machine carries out the parts of a qualification with labs on this machine.
type Machine struct {
	Catalogue *images.Catalogue
	Labs      engine.Labs
	Options   engine.Options // Progress is not nil
	NewLab    func() *keptlab.Lab
	// IsUnfit reports whether an error says that this machine cannot run labs.
	IsUnfit func(err error) bool
}

func (m Machine) Available(ctx context.Context, ref string) error {
	return m.Catalogue.Derive(ctx, ref)
}

func (m Machine) Unfit(err error) bool { return m.IsUnfit(err) }

func (m Machine) Incident(s framework.Scenario, at func(version string) (framework.Scenario, error)) VersionLab {
	return versionlab.Lab{Lab: m.NewLab(), Catalogue: m.Catalogue, Scenario: s, At: at}
}

func (m Machine) Configuration(ctx context.Context, inputs Inputs, config ConfigMap) (Configuration, error) {
	ended := m.Options.Progress.Step(scope, "read what the vendor states of the keys of "+inputs.From+" and "+inputs.To)
	table, err := ciliumTable(ctx, inputs.From, inputs.To)
	ended(err)
	if err != nil {
		return Configuration{}, err
	}
	return compared(table, inputs, config.Data)
}

func (m Machine) Recorded(u upgrade.Upgrade, from, to, dir string) (upgrade.Measures, error) {
	return upgrade.Stored(dir, u, from, to)
}

func (m Machine) Upgrade(ctx context.Context, u upgrade.Upgrade, from, to, dir string) (upgrade.Measures, error) {
	if err := m.Catalogue.Know(u.ImagesOf(from, to)...); err != nil {
		return upgrade.Measures{}, err
	}
	o := m.Options
	o.Output, o.Keep = dir, false
	return upgrade.Run(ctx, u, from, to, m.Labs, o)
}
