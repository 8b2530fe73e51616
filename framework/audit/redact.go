package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"al.essio.dev/pkg/shellescape"

	"github.com/relapse-dev/relapse/framework/bgprouter"
	"github.com/relapse-dev/relapse/framework/report/archive"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// Redaction replaces the names and addresses of a cluster and its routers, as relapse archive --redact does.
type Redaction struct{ by *archive.Dictionary }

// Redact chooses the replacements for some reads and their result. by are the routers: errors quote how they are
// reached. hosts are further names of machines.
//
// In reads all words are replaced, except numbers, versions, times and known words. In the result the same words are
// replaced, and the IDs of findings, because names could be guessed by them.
func Redact(reads []snapshot.Snapshot, r Result, by []bgprouter.Declared, hosts []string) (Redaction, error) {
	x := Redaction{archive.NewDictionary()}
	for _, d := range by {
		x.by.Name("router", d.Name)
		x.by.Name("host", d.SSH)
		x.by.Words("host", d.File, d.Address, shellescape.QuoteCommand(d.Command))
		x.by.Words("host", slices.Collect(maps.Values(d.Files))...)
	}
	x.by.Words("host", hosts...)
	for _, s := range reads {
		for _, router := range s.Routers {
			x.by.Name("router", router.Name)
		}
		for _, node := range s.Nodes.Items {
			x.by.Name("node", node.Name)
		}
		if _, err := x.read(s); err != nil {
			return x, err
		}
	}
	for _, id := range idsOf(r) {
		x.by.Name("finding", id)
	}
	for _, s := range r.Unused { // they may name objects that no read has any more
		x.by.Words("name", s.Object)
		x.by.Name("router", s.Routers...)
	}
	for _, f := range r.Findings {
		if f.Detector == SuppressionDetector {
			x.by.Words("name", f.Object.String())
		}
	}
	_, _, err := x.by.Choose()
	if err != nil {
		err = fmt.Errorf("replacing names and addresses of reads: %w", err)
	}
	return x, err
}

func idsOf(r Result) (all []string) {
	for _, findings := range [][]Finding{r.Findings, r.Once} {
		for _, f := range findings {
			all = append(all, f.ID)
			if f.Detector == SuppressionDetector {
				all = append(all, anIDInside.FindAllString(f.Object.String(), -1)...)
			}
		}
	}
	for _, s := range r.Suppressed {
		all = append(all, s.ID, s.By.ID)
	}
	for _, s := range r.Unused {
		all = append(all, s.ID)
	}
	return all
}

// Reads returns reads with replacements. They cannot be judged again.
func (x Redaction) Reads(reads []snapshot.Snapshot) ([]snapshot.Snapshot, error) {
	var all []snapshot.Snapshot
	for _, s := range reads {
		replaced, err := x.read(s)
		if err != nil {
			return nil, err
		}
		replaced.Redacted = true
		all = append(all, replaced)
	}
	return all, nil
}

func (x Redaction) read(s snapshot.Snapshot) (to snapshot.Snapshot, err error) {
	text, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(x.by.Snapshot(text), &to)
	}
	if err != nil {
		err = fmt.Errorf("replacing names and addresses of a read: %w", err)
	}
	return to, err
}

// Result returns a result with replacements.
func (x Redaction) Result(r Result) (Result, error) {
	var to Result
	text, err := json.Marshal(r)
	if err == nil {
		err = json.Unmarshal(x.by.Values(text), &to)
	}
	if err != nil {
		return to, fmt.Errorf("replacing names and addresses of the findings: %w", err)
	}
	to.Ran, to.Planned = r.Ran, r.Planned // these have no name of the cluster
	return to, nil
}

// Text returns a text with replacements.
func (x Redaction) Text(text string) string { return x.by.Text(text) }

// Anonymous returns suppressions without the texts that people have written.
func Anonymous(all []Suppression) []Suppression {
	return each.Of(all, func(s Suppression) Suppression {
		if s.Reason = "redacted"; s.Owner != "" {
			s.Owner = "redacted"
		}
		return s
	})
}
