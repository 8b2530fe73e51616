package display

import (
	"cmp"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
)

// stepKey identifies a step of a run. Keys are made in this file only.
type stepKey struct{ scope, step string }

// keyOf identifies a step in its plan and in its progress, which knows names only.
func keyOf(scope, name string) stepKey { return stepKey{scope, name} }

// keyAcrossRuns identifies a planned step in other runs, by its identifier if it has one.
func keyAcrossRuns(s engine.Step) stepKey {
	if s.ID == (framework.StepID{}) {
		return stepKey{s.Scope, s.Name}
	}
	return stepKey{s.Scope, s.ID.String()}
}

// keyOfRecorded is keyAcrossRuns of a step of a report. In reports of older versions it is
// by name.
func keyOfRecorded(s report.Step) stepKey { return stepKey{s.Scope, cmp.Or(s.ID, s.Name)} }
