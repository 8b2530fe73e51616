// Package qualify says of an upgrade of a component, before it is made, whether it can
// be made: from what its configuration means to both versions, from the incidents of
// the catalogue at both, and from what an upgrade on a lab and the way back did to
// traffic. It runs nothing: it is given what was found, and judges that.
package qualify

import (
	"fmt"
	"time"

	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/upgrade"
)

// Schema names the format of qualification.json.
const Schema = "relapse.qualification/v1"

// Verdict is what a qualification comes to.
type Verdict string

// Verdicts.
const (
	Go Verdict = "GO"
	// NoGo: an incident is introduced, the new version refuses the configuration, or
	// a threshold is exceeded.
	NoGo Verdict = "NO-GO"
	// Unknown: something that decides could not be judged.
	Unknown Verdict = "UNKNOWN"
)

// Qualification is what was found of an upgrade, and what follows from it.
type Qualification struct {
	Schema  string    `json:"schema"`
	Verdict Verdict   `json:"verdict"`
	Why     string    `json:"why"` // one sentence
	Began   time.Time `json:"began"`
	TookMS  int64     `json:"took_ms"`
	// Command does the same again, and Relapse says which program did it.
	Command    string     `json:"command"`
	Relapse    string     `json:"relapse"`
	Thresholds Thresholds `json:"thresholds"`
	Inputs     Inputs     `json:"inputs"`
	// Rows are the table: incidents that are still there first.
	Rows []Row `json:"rows"`
	// NotTested says, a sentence each, what the verdict says nothing about.
	NotTested []string `json:"not_tested"`
}

// Thresholds are what traffic may suffer while the component is upgraded, or put back.
// After either nothing may be lost.
type Thresholds struct {
	// MaxGapMS is the longest time for which a probe may have no answer.
	MaxGapMS int64 `json:"max_gap_ms"`
	// MaxLost is the share of a path's packets that may be lost, from 0 to 1.
	MaxLost float64 `json:"max_lost"`
}

// State is what a row says about the upgrade.
type State string

// States of a row.
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
)

// Row is one line of the table.
type Row struct {
	// Part is "path", "configuration", "incident" or "upgrade", and Name what the row
	// is about.
	Part string `json:"part"`
	Name string `json:"name"`
	// From, During, To and Back are its cells: with the old version, on the way to the
	// new one, with that, and on the way back. Empty where there is nothing to say.
	From   string `json:"from"`
	During string `json:"during"`
	To     string `json:"to"`
	Back   string `json:"back"`
	State  State  `json:"state"`
	// Decides is set where the verdict is UNKNOWN if nobody could judge the row.
	Decides bool   `json:"decides"`
	Says    string `json:"says"` // a sentence without its full stop
	// Remedy is the way out, Issue the vendor's own, and Command shows it again. They
	// are there with the state no-go, as far as they are known.
	Remedy  string `json:"remedy,omitempty"`
	Issue   string `json:"issue,omitempty"`
	Command string `json:"command,omitempty"`
}

// Title names the row.
func (r Row) Title() string { return r.Part + ", " + r.Name }

// Inputs are what was found of an upgrade.
type Inputs struct {
	Component     string        `json:"component"`
	From          string        `json:"from"`
	To            string        `json:"to"`
	Path          Path          `json:"path"`
	Configuration Configuration `json:"configuration"`
	// Incidents are those of the catalogue that concern the component.
	Incidents []Incident `json:"incidents"`
	Upgrade   Upgrade    `json:"upgrade"`
}

// Configuration is what becomes of the user's own configuration.
type Configuration struct {
	// Source is where it was read, empty where none was given; ConfigMap is its name,
	// as namespace/name, and Keys how many it has.
	Source    string `json:"source"`
	ConfigMap string `json:"config_map"`
	Keys      int    `json:"keys"`
	// NotAsked says why the versions were not asked about it; empty: they were. Decides
	// is set where they could have been.
	NotAsked string `json:"not_asked,omitempty"`
	Decides  bool   `json:"decides,omitempty"`
	// RefusedFrom and RefusedTo are what a version says that does not start with it;
	// empty: it starts.
	RefusedFrom string `json:"refused_from,omitempty"`
	RefusedTo   string `json:"refused_to,omitempty"`
	// Drifts are what becomes of its keys, and of those that are not set.
	Drifts []configdrift.Drift `json:"drifts"`
	// Effective are the fields of the vendor's own configuration that come out
	// otherwise with To.
	Effective []Effective `json:"effective"`
}

// Effective is one field of what a component goes by.
type Effective struct {
	Field string `json:"field"`
	From  string `json:"from"`
	To    string `json:"to"`
}

// Outcome is what becomes of an incident with an upgrade.
type Outcome string

// Outcomes.
const (
	Fixed        Outcome = "fixed"
	Introduced   Outcome = "introduced"
	StillThere   Outcome = "still there"
	NeverThere   Outcome = "never there"
	NotJudgeable Outcome = "not judged"
)

// Incident is one of the catalogue's, at both versions.
type Incident struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Form  string `json:"form"` // "whole" or "slice"
	// OfUpgrade is set where the upgrade itself is the incident, which no version has
	// for itself: From is then that there was none, and To is the upgrade.
	OfUpgrade bool    `json:"of_upgrade"`
	Outcome   Outcome `json:"outcome"`
	From      Seen    `json:"from"`
	To        Seen    `json:"to"`
	// Remedies are the documented ways out, Issue is the vendor's, if it has one, and
	// Command runs it again.
	Remedies []string `json:"remedies"`
	Issue    string   `json:"issue,omitempty"`
	Command  string   `json:"command"`
}

// Seen is what was seen of an incident at a version.
type Seen struct {
	Outcome bisect.Outcome `json:"outcome"`
	// Verdict is empty where the version did not run. Why says why it did not, or why
	// the verdict is that one.
	Verdict string `json:"verdict,omitempty"`
	Why     string `json:"why,omitempty"`
	// Report is relative to the folder of the qualification.
	Report string `json:"report,omitempty"`
	TookMS int64  `json:"took_ms,omitempty"`
}

// Upgrade is what the upgrade itself did to a lab.
type Upgrade struct {
	// Measures are nil where there are none. Why says why, or what else went wrong.
	Measures *upgrade.Measures `json:"measures,omitempty"`
	Why      string            `json:"why,omitempty"`
}

// outcome compares what was seen at both versions. Refused and prevented count for
// not affected.
func (i Incident) outcome() Outcome {
	switch from, to := i.From.Outcome, i.To.Outcome; {
	case i.OfUpgrade && to == bisect.Affected:
		return Introduced
	case i.OfUpgrade && to == bisect.Unaffected:
		return NeverThere
	case from == bisect.Affected && to == bisect.Affected:
		return StillThere
	case from == bisect.Affected && to == bisect.Unaffected:
		return Fixed
	case from == bisect.Unaffected && to == bisect.Affected:
		return Introduced
	case from == bisect.Unaffected && to == bisect.Unaffected:
		return NeverThere
	}
	return NotJudgeable
}

// row is the incident's row. One that could not be judged decides only where the
// upgrade may have introduced it.
func (i Incident) row(from, to string) Row {
	r := Row{Part: PartIncident, Name: i.Name, From: i.From.cell(), To: i.To.cell(), State: Fine, Decides: true}
	if i.OfUpgrade {
		r.From, r.During, r.To = "", r.To, ""
	}
	switch i.Outcome = i.outcome(); i.Outcome {
	case Introduced:
		r.State = Fails
		r.Says = fmt.Sprintf("%s (%s) is introduced: not affected with %s, and %s with %s", i.Name, i.Title, from, i.To.Verdict, to)
		if i.OfUpgrade {
			r.Says = fmt.Sprintf("%s (%s) is introduced by the upgrade itself: %s", i.Name, i.Title, i.To.Verdict)
		}
		r.Remedy, r.Issue, r.Command = joined(i.Remedies), i.Issue, i.Command
	case StillThere:
		r.State = Warning
		r.Says = fmt.Sprintf("%s (%s) is still there: %s with %s as with %s", i.Name, i.Title, i.To.Verdict, to, from)
		r.Remedy, r.Issue, r.Command = joined(i.Remedies), i.Issue, i.Command
	case Fixed:
		r.Says = fmt.Sprintf("%s (%s) is fixed: %s with %s, %s with %s", i.Name, i.Title, i.From.Verdict, from, i.To.Verdict, to)
	case NeverThere:
		r.Says = fmt.Sprintf("%s (%s) is in neither version", i.Name, i.Title)
		if i.OfUpgrade {
			r.Says = fmt.Sprintf("%s (%s) does not come with this upgrade", i.Name, i.Title)
		}
	case NotJudgeable:
		// What To has not got the upgrade does not bring, whatever From has; and what
		// From has is not introduced.
		switch {
		case i.To.Outcome == bisect.Unaffected:
			r.State, r.Decides = NotJudged, false
			r.Says = fmt.Sprintf("%s (%s) is not judged with %s (%s), and is not in %s", i.Name, i.Title, from, i.From.Why, to)
		case i.From.Outcome == bisect.Affected:
			r.State, r.Decides = NotJudged, false
			r.Says = fmt.Sprintf("%s (%s) is there with %s, and not judged with %s (%s): it is fixed or still there", i.Name, i.Title, from, to, i.To.Why)
		case i.To.Outcome == bisect.Affected:
			r.State = NotJudged
			r.Says = fmt.Sprintf("%s (%s) is there with %s, and not judged with %s (%s): it is introduced or still there", i.Name, i.Title, to, from, i.From.Why)
			r.Command = i.Command
		default:
			r.State = NotJudged
			r.Says = fmt.Sprintf("%s (%s) is not judged with %s: %s", i.Name, i.Title, to, i.To.Why)
			r.Command = i.Command
		}
	}
	if i.To.Verdict == "refused" && r.State == Fine {
		r.Says += fmt.Sprintf("; %s refuses the incident's configuration: %s", to, i.To.Why)
		r.State = Warning
	}
	return r
}

func (s Seen) cell() string {
	switch {
	case s.Verdict != "":
		return s.Verdict
	case s.Outcome == "":
		return ""
	}
	return string(NotJudgeable)
}
