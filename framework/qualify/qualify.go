// Package qualify judges an upgrade of a component before it is made: by the meaning of the configuration to both
// versions, by the incidents of the catalogue with both versions, and by the effect on traffic of an upgrade and its
// rollback on a lab. A Runner collects the Inputs, and Judge, which is pure, decides.
package qualify

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/upgrade"
)

// Schema names the format of qualification.json.
const Schema = "relapse.qualification/v1"

// Verdict is the result of a qualification.
type Verdict string

const (
	Go Verdict = "GO"
	// NoGo: an incident is introduced, the new version refuses the configuration, or a threshold is exceeded.
	NoGo Verdict = "NO-GO"
	// Unknown: a part that decides could not be judged.
	Unknown Verdict = "UNKNOWN"
)

// Qualification has the findings about an upgrade, and the verdict.
type Qualification struct {
	Schema  string    `json:"schema"`
	Verdict Verdict   `json:"verdict"`
	Why     string    `json:"why"` // one sentence
	Began   time.Time `json:"began"`
	TookMS  int64     `json:"took_ms"`
	// Command repeats the qualification, and Relapse is the program that did it.
	Command    string     `json:"command"`
	Relapse    string     `json:"relapse"`
	Thresholds Thresholds `json:"thresholds"`
	Inputs     Inputs     `json:"inputs"`
	// Rows are the table. Incidents that are still there come first.
	Rows []Row `json:"rows"`
	// NotTested says what the verdict does not cover, a sentence each.
	NotTested []string `json:"not_tested"`
}

// Thresholds bound the losses of traffic during the upgrade and during the rollback. After both, nothing may be lost:
// a loss is a NO-GO if its rate is higher than at rest, and UNKNOWN otherwise.
type Thresholds struct {
	// MaxGapMS is how long a probe may go unanswered.
	MaxGapMS int64 `json:"max_gap_ms"`
	// MaxLost is the share of a path's packets that may be lost, from 0 to 1.
	MaxLost float64 `json:"max_lost"`
}

var DefaultThresholds = Thresholds{MaxGapMS: 1000, MaxLost: 0.001}

// State is the result of a row.
type State string

const (
	Fine        State = "fine"
	Warning     State = "warning"
	Fails       State = "no-go"
	NotJudged   State = "unknown"
	NotLookedAt State = "not looked at"
)

// Parts of a qualification, each with its rows.
const (
	PartPath          = "path"
	PartConfiguration = "configuration"
	PartIncident      = "incident"
	PartUpgrade       = "upgrade"
	// PartOtherwise is the folder of the upgrade under the other setting.
	PartOtherwise = "upgrade-otherwise"
)

// Row is one line of the table.
type Row struct {
	// Part is "path", "configuration", "incident" or "upgrade", and Name the subject of the row.
	Part string `json:"part"`
	Name string `json:"name"`
	// From, During, To and Back are its cells: with the old version, during the upgrade, with the new version, and
	// during and after the rollback. Each may be empty.
	From   string `json:"from"`
	During string `json:"during"`
	To     string `json:"to"`
	Back   string `json:"back"`
	State  State  `json:"state"`
	// Decides is set if the verdict is UNKNOWN when the row could not be judged.
	Decides bool   `json:"decides"`
	Says    string `json:"says"` // a sentence without its full stop
	// Remedy is a documented remedy, Issue the vendor's issue, and Command reproduces the row. Each may be empty.
	Remedy  string `json:"remedy,omitempty"`
	Issue   string `json:"issue,omitempty"`
	Command string `json:"command,omitempty"`
}

func (r Row) Title() string { return r.Part + ", " + r.Name }

// Inputs are the findings about an upgrade.
type Inputs struct {
	Component string `json:"component"`
	From      string `json:"from"`
	To        string `json:"to"`
	// Subnets is the prefix into which the networks of the labs were moved; empty: the labs had the documented subnets.
	Subnets netip.Prefix `json:"subnets,omitzero"`
	// Values are nil unless the user has given values of the vendor's chart.
	Values        *Values       `json:"values,omitempty"`
	Path          Path          `json:"path"`
	Configuration Configuration `json:"configuration"`
	// Settings is a digest of the user's settings for the lab of the upgrade, and of the chart's values there.
	Settings string `json:"settings,omitempty"`
	// Mode is the mode in which the component ran on the lab of the upgrade, if it has several.
	Mode string `json:"mode,omitempty"`
	// Family is framework.Dual if that lab had two address families; empty: it had only IPv4.
	Family string `json:"family,omitempty"`
	// Under is a setting on which the result depends, besides the user's values.
	Under string `json:"under,omitempty"`
	// Replaced are what the labs had in place of parts of the user's settings.
	Replaced []string `json:"replaced,omitempty"`
	// Incidents are the incidents of the catalogue that test the component. LeftOut says why other incidents did not run.
	Incidents []Incident `json:"incidents"`
	LeftOut   []string   `json:"left_out,omitempty"`
	Upgrade   Upgrade    `json:"upgrade"`
	// Otherwise is the upgrade under a setting that the user may have in place of Under, if the setting is unknown.
	Otherwise *Otherwise `json:"otherwise,omitempty"`
	// Built says, by version, how its images are built, if not with the modules that the vendor has chosen.
	Built map[string]string `json:"built,omitempty"`
}

// Configuration is the effect of the upgrade on the user's own configuration.
type Configuration struct {
	// Source is the source of the configuration; empty: none was given. ConfigMap is its namespace/name, with Keys keys.
	Source    string `json:"source"`
	ConfigMap string `json:"config_map"`
	Keys      int    `json:"keys"`
	// NotAsked says why it was not compared; empty if it was. Decides is set if it could have been.
	NotAsked string `json:"not_asked,omitempty"`
	Decides  bool   `json:"decides,omitempty"`
	// RefusedFrom and RefusedTo say why a version does not start with it; empty: no reason is known.
	RefusedFrom string `json:"refused_from,omitempty"`
	RefusedTo   string `json:"refused_to,omitempty"`
	// Drifts are the effects on its keys, and on keys that it does not set.
	Drifts []configdrift.Drift `json:"drifts"`
	// Charts compares what the charts of both versions render; nil without values. With values, of the fields above only
	// Source is set, and Drifts are the drifts with which the agent of the new version does not start.
	Charts *Charts `json:"charts,omitempty"`
}

// Effective is the default of a flag in both versions.
type Effective struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// Incident is an incident of the catalogue, at both versions.
type Incident struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Form  string `json:"form"` // "whole" or "slice"
	// OfUpgrade is set if the upgrade itself causes the incident: From is empty, and To the result of the upgrade.
	OfUpgrade bool `json:"of_upgrade"`
	// AnsweredBy is the path of the upgrade that answers the incident's question if its script does not run.
	AnsweredBy string `json:"answered_by,omitempty"`
	// NotAsked is why its script runs with neither version; empty if it runs.
	NotAsked string         `json:"not_asked,omitempty"`
	Outcome  advise.Outcome `json:"outcome"`
	From     Seen           `json:"from"`
	To       Seen           `json:"to"`
	// Remedies are the documented remedies, Issue is the vendor's issue, and Command reproduces the incident.
	Remedies []string `json:"remedies"`
	Issue    string   `json:"issue,omitempty"`
	Command  string   `json:"command"`
}

// Seen is the result of an incident's script at a version.
type Seen struct {
	Outcome bisect.Outcome `json:"outcome"`
	// Verdict is empty if the version did not run. Why is the reason why it did not, or the reason for the verdict.
	Verdict string `json:"verdict,omitempty"`
	Why     string `json:"why,omitempty"`
	// Known is set if the verdict is an earlier run's. Why names that run.
	Known bool `json:"known,omitempty"`
	// When it ran; zero if Known, or at the time of the qualification.
	When time.Time `json:"when,omitzero"`
	// Report is relative to the folder of the qualification.
	Report string `json:"report,omitempty"`
}

// Upgrade is the result of the upgrade on a lab.
type Upgrade struct {
	// Measures are nil if there are none. Why says why, or what failed.
	Measures *upgrade.Measures `json:"measures,omitempty"`
	Why      string            `json:"why,omitempty"`
}

// Otherwise is an upgrade under another setting than Inputs.Under.
type Otherwise struct {
	Under string `json:"under"`
	Upgrade
}

// row is the incident's row. An unjudged incident decides only if the upgrade may have introduced it.
func (i Incident) row(from, to string) Row {
	r := Row{Part: PartIncident, Name: i.Name, From: i.From.cell(), To: i.To.cell(), State: Fine, Decides: true}
	if i.OfUpgrade {
		r.From, r.During, r.To = "", r.To, ""
	}
	if i.NotAsked != "" {
		r.State, r.Decides = NotLookedAt, false
		r.Says = fmt.Sprintf("%s (%s) is not checked: %s", i.Name, i.Title, i.NotAsked)
		return r
	}
	switch i.Outcome {
	case advise.Introduced:
		r.State = Fails
		r.Says = fmt.Sprintf("%s (%s) is introduced: not affected with %s, %s with %s", i.Name, i.Title, from, i.To.Verdict, to)
		if i.OfUpgrade {
			r.Says = fmt.Sprintf("%s (%s) is introduced by the upgrade itself: %s", i.Name, i.Title, i.To.Verdict)
		}
		r.Remedy, r.Issue, r.Command = joined(i.Remedies), i.Issue, i.Command
	case advise.StillThere:
		r.State = Warning
		r.Says = fmt.Sprintf("%s (%s) is still there: %s with %s and with %s", i.Name, i.Title, i.To.Verdict, to, from)
		r.Remedy, r.Issue, r.Command = joined(i.Remedies), i.Issue, i.Command
	case advise.Fixed:
		r.Says = fmt.Sprintf("%s (%s) is fixed: %s with %s, %s with %s", i.Name, i.Title, i.From.Verdict, from, i.To.Verdict, to)
	case advise.NeverThere:
		r.Says = fmt.Sprintf("%s (%s): neither version is affected", i.Name, i.Title)
		if i.OfUpgrade {
			r.Says = fmt.Sprintf("%s (%s) is not caused by this upgrade", i.Name, i.Title)
		}
	case advise.NotJudgeable:
		r.State = NotJudged
		// An incident that From has, or that To does not have, is not introduced.
		switch {
		case i.To.Outcome == bisect.Unaffected:
			r.Decides = false
			r.Says = fmt.Sprintf("%s (%s) is not judged with %s (%s); %s is not affected", i.Name, i.Title, from, i.From.Why, to)
		case i.From.Outcome == bisect.Affected:
			r.Decides = false
			r.Says = fmt.Sprintf("%s (%s): %s is affected, and %s is not judged (%s): it is fixed or still there",
				i.Name, i.Title, from, to, i.To.Why)
		case i.To.Outcome == bisect.Affected:
			r.Command = i.Command
			r.Says = fmt.Sprintf("%s (%s): %s is affected, and %s is not judged (%s): it is introduced or still there",
				i.Name, i.Title, to, from, i.From.Why)
		default:
			r.Command = i.Command
			r.Says = fmt.Sprintf("%s (%s) is not judged with %s: %s", i.Name, i.Title, to, i.To.Why)
		}
	}
	if i.To.Verdict == string(framework.Refused) && r.State == Fine {
		r.Says += fmt.Sprintf("; %s refuses the incident's configuration: %s", to, i.To.Why)
		r.State = Warning
	}
	if i.isKnown() {
		r.Says += ", by an earlier run"
	}
	return r
}

func (i Incident) isKnown() bool { return i.From.Known || i.To.Known }

func (s Seen) cell() string {
	switch {
	case s.Verdict != "":
		return s.Verdict
	case s.Outcome == "":
		return ""
	}
	return string(advise.NotJudgeable)
}
