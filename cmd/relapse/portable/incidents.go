package portable

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/audit"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/status"
)

// Incident is what audits and advice say of an incident of the catalogue. It is no framework.Incident, because that
// would link the packages that bring up labs.
type Incident struct {
	advise.Subject
	// Findings are the findings that a run of the scenario expects: DETECTOR KIND.
	Findings []string `json:"findings"`
}

// incidents has the catalogue in catalogue.json, and the output of describe for each incident. TestIncidents of
// cmd/relapse compares them with the scenarios; go test ./cmd/relapse -update -run TestIncidents writes them.
//
//go:embed incidents
var incidents embed.FS

// Incidents returns the incidents of the catalogue.
var Incidents = sync.OnceValue(func() (all []Incident) {
	text, _ := incidents.ReadFile("incidents/catalogue.json") // without it there is no JSON
	if err := json.Unmarshal(text, &all); err != nil {
		panic("reading the embedded catalogue: " + err.Error())
	}
	return all
})

// incidentsOf returns the incidents that expect a finding of this detector and kind; if there are none, the incidents
// that expect a finding of this detector.
func incidentsOf(f detect.Finding) []audit.Incident {
	kind, detector := []audit.Incident{}, []audit.Incident{}
	for _, i := range Incidents() {
		incident := audit.Incident{Name: i.Name, Describe: self() + " describe " + i.Name, Remedies: i.Remedies}
		if slices.Contains(i.Findings, f.Detector+" "+f.Kind) {
			kind = append(kind, incident)
		}
		if slices.ContainsFunc(i.Findings, func(finding string) bool { return strings.HasPrefix(finding, f.Detector+" ") }) {
			detector = append(detector, incident)
		}
	}
	if len(kind) > 0 {
		return kind
	}
	return detector
}

// Describe is the command describe of a program without the scenarios.
func Describe() *cobra.Command {
	return &cobra.Command{
		Use:   "describe NAME",
		Short: "Describe an incident, and how it is reproduced",
		Args:  ExactArgs(1, "the name of a scenario"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := incidents.ReadFile("incidents/" + args[0] + ".txt")
			if err != nil {
				names := each.Of(Incidents(), func(i Incident) string { return i.Name })
				return status.Input("no scenario %q%s", args[0], topology.Nearest(args[0], names))
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), string(text))
			return err
		},
	}
}
