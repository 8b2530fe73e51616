package audit

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Suppression matches findings, or a gap, that its owner accepts for some time.
type Suppression struct {
	// ID identifies a finding. Without it Detector, Kind and Object are set, or Gap and Object: Gap is the reason why
	// something is not judged, and Object its nodes or addresses. In Kind, Object and Gap a * stands for any text.
	ID       string `json:"id,omitempty"`
	Detector string `json:"detector,omitempty"`
	Kind     string `json:"kind,omitempty"`
	Object   string `json:"object,omitempty"`
	Gap      string `json:"gap,omitempty"`
	// Routers are the routers on which it holds; empty: all. A finding that is also on another router counts.
	Routers []string `json:"routers,omitempty"`
	// Active is set if it also holds for an active or a pending finding. Without it an accepted risk is reported again
	// when it becomes a fault.
	Active bool   `json:"active,omitempty"`
	Reason string `json:"reason"`
	// Expires is the last day on which it holds, in UTC, as 2006-01-02.
	Expires string `json:"expires"`
	// Owner is the person who decided it; it may be empty.
	Owner string `json:"owner,omitempty"`
	// Line is its first line in its file.
	Line int `json:"line" yaml:"-"`
}

// Suppressed is a finding that does not count, and why.
type Suppressed struct {
	Finding
	By Suppression `json:"by"`
}

// Of describes the findings that it matches.
func (s Suppression) Of() string {
	text := s.ID
	switch {
	case s.Gap != "":
		text = fmt.Sprintf("what is not judged of %s, %q", s.Object, s.Gap)
	case text == "":
		text = fmt.Sprintf("%s, %s of %s", s.Detector, s.Kind, s.Object)
	}
	if len(s.Routers) > 0 {
		text += " on " + strings.Join(s.Routers, ", ")
	}
	return text
}

func (s Suppression) expired(at time.Time) bool {
	last, err := time.Parse(time.DateOnly, s.Expires)
	return err != nil || !at.Before(last.AddDate(0, 0, 1))
}

// A detector was renamed: before, its findings had other IDs.
const oldName, newName = "ipvs-convergence", "proxy-convergence"

func (s Suppression) matches(f Finding) bool {
	if s.ID != "" {
		was := f.Finding
		if was.Detector == newName {
			was.Detector = oldName
		}
		return s.ID == f.ID || s.ID == id(was)
	}
	return s.Gap == "" && s.Detector == f.Detector && matches(s.Kind, f.Kind) && matches(s.Object, f.Object.String())
}

// covers reports whether it holds on all of these routers. With routers it does not hold for a finding without routers.
func (s Suppression) covers(routers []string) bool {
	other := func(name string) bool { return !slices.Contains(s.Routers, name) }
	return len(s.Routers) == 0 || len(routers) > 0 && !slices.ContainsFunc(routers, other)
}

// closes reports whether it matches a gap: the reason, and all nodes and routers of the gap.
func (s Suppression) closes(g detect.Gap) bool {
	other := func(name string) bool { return !matches(s.Object, name) }
	return s.Gap != "" && matches(s.Gap, g.Reason) && !slices.ContainsFunc(strings.Split(g.Of, ", "), other) &&
		s.covers(strings.Split(g.Routers, ", "))
}

// matches reports whether a text matches a pattern, in which a * stands for any text.
func matches(pattern, text string) bool {
	quoted := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `.*`)
	return regexp.MustCompile(`(?s)^` + quoted + `$`).MatchString(text)
}

// SuppressionDetector is the detector of the findings that are expired suppressions, and Expired their kind.
const (
	SuppressionDetector = "suppression"
	Expired             = "expired"
)

const suppressionOf = "suppression of "

// Suppress removes suppressed findings, closes suppressed gaps, and notes unused suppressions. What is unread stays.
// An expired suppression suppresses nothing, and is a latent finding. at is the present time, also for saved reads.
func (r *Result) Suppress(all []Suppression, at time.Time) {
	used := make([]bool, len(all))
	r.NotJudged = slices.Clone(r.NotJudged)
	for i, g := range r.NotJudged {
		if by := slices.IndexFunc(all, func(s Suppression) bool { return !s.expired(at) && s.closes(g) }); by >= 0 {
			used[by] = true
			r.NotJudged[i].Open = false
			r.NotJudged[i].Says = fmt.Sprintf("%s Suppressed by line %d until %s.", g.Says, all[by].Line, all[by].Expires)
		}
	}
	take := func(f Finding) bool {
		by := -1
		for i, s := range all {
			if s.expired(at) || !s.matches(f) {
				continue
			}
			used[i] = true
			if counts := !s.covers(f.Routers) || !s.Active && (f.State == detect.Active || f.State == detect.Pending); !counts && by < 0 {
				by = i
			}
		}
		if by >= 0 {
			r.Suppressed = append(r.Suppressed, Suppressed{f, all[by]})
		}
		return by >= 0
	}
	r.Findings, r.Once = slices.DeleteFunc(r.Findings, take), slices.DeleteFunc(r.Once, take)
	for i, s := range all {
		switch {
		case s.expired(at):
			f := detect.Finding{Detector: SuppressionDetector, Kind: Expired, State: detect.Latent, Object: detect.Named(suppressionOf + s.Of())}
			f.Says = fmt.Sprintf("The suppression of %s on line %d expired after %s: it suppresses nothing any more. Its reason was: %s.",
				s.Of(), s.Line, s.Expires, strings.TrimSuffix(s.Reason, "."))
			f.Owner = s.Owner
			r.Findings = append(r.Findings, identified(f))
		case !used[i]:
			r.Unused = append(r.Unused, s)
		}
	}
	r.sort()
}

var (
	anID       = regexp.MustCompile(`^[0-9a-f]{12}$`)
	anIDInside = regexp.MustCompile(`\b[0-9a-f]{12}\b`)
)

// ParseSuppressions reads a file of suppressions: a YAML list of mappings with the keys id, or detector, kind and
// object, or gap and object, and routers, reason, expires, active and owner. The error is one line, with the file, the
// line, the field and what is expected.
func ParseSuppressions(name string, text []byte) ([]Suppression, error) {
	const list = "a list of suppressions, each with id (or detector, kind and object; or gap and object), reason and expires"
	var all []Suppression
	if err := bgprouter.Strict(text, &all, list); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var begin []yaml.Node
	if err := yaml.Unmarshal(text, &begin); err != nil {
		return nil, fmt.Errorf("%s: expected %s", name, list)
	}
	for i := range all {
		s := &all[i]
		s.Line = begin[i].Line
		if s.Detector == oldName {
			s.Detector = newName
		}
		says := s.wrong()
		if j := slices.IndexFunc(all[:i], func(o Suppression) bool { return o.Of() == s.Of() }); j >= 0 {
			says = cmp.Or(says, fmt.Sprintf("line %d suppresses %s already", all[j].Line, s.Of()))
		}
		if says != "" {
			return nil, fmt.Errorf("%s: line %d: %s", name, s.Line, says)
		}
	}
	return all, nil
}

func (s Suppression) wrong() string {
	detectors := detectorNames()
	_, noDate := time.Parse(time.DateOnly, s.Expires)
	switch {
	case s.ID != "" && s.Detector+s.Kind+s.Object+s.Gap != "":
		return "field id: expected either id, or detector, kind and object, or gap and object"
	case s.Gap != "" && s.Detector+s.Kind != "":
		return "field gap: expected either gap and object, or detector, kind and object"
	case s.ID != "" && !anID.MatchString(s.ID):
		return fmt.Sprintf("field id: %q: expected the 12 hexadecimal digits that an audit prints", s.ID)
	case s.ID+s.Gap+s.Detector == "":
		return "fields id, detector and gap are missing: expected id, or detector, kind and object, or gap and object"
	case s.ID+s.Gap == "" && !slices.Contains(detectors, s.Detector):
		return fmt.Sprintf("field detector: %q%s: expected the name of one detector", s.Detector, topology.Nearest(s.Detector, detectors))
	case s.ID+s.Gap == "" && s.Kind == "":
		return "field kind is missing: expected a kind that an audit prints, or * for all"
	case s.ID == "" && s.Object == "":
		return "field object is missing: expected an object that an audit prints, with * for any text, such as DaemonSet kube-system/*"
	case s.Routers != nil && len(s.Routers) == 0 || slices.Contains(s.Routers, ""):
		return "field routers: expected the names of routers, such as [tor1]"
	case strings.TrimSpace(s.Reason) == "":
		return "field reason is missing: expected why nobody has to act"
	case noDate != nil:
		return fmt.Sprintf("field expires: %q: expected the last day, such as 2027-01-31", s.Expires)
	}
	return ""
}

func detectorNames() []string {
	others := each.Of(notRun(scope{}), func(n NotRun) string { return n.Detector })
	return each.Once(append(others, each.Of(detectors, detect.Detector.Name)...))
}
