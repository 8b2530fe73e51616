// Package advise says what is known of an upgrade without a run: by results of runs, and by the records of scenarios.
package advise

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
)

// Known is the result of a run: a line of a file of results, as JSON. With an Incident it is the verdict of its script,
// and From and To are one version unless the upgrade itself causes it. Otherwise it is a qualification's verdict.
type Known struct {
	Component string `json:"component"`
	From      string `json:"from"`
	To        string `json:"to"`
	// When is a day or a time, as in RFC 3339; empty if a scenario records the result, which each of its runs proves.
	When     string `json:"when"`
	Verdict  string `json:"verdict"`
	Under    string `json:"under,omitempty"` // settings that the verdict depends on
	Incident string `json:"incident,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
	Report   string `json:"report"` // the run's folder, below the folder of reports, or a document
}

// UsersOwn stands for the settings of a user. Two results with these words may have different settings.
const UsersOwn = "a user's configuration"

// key is equal for two results if the later one replaces the earlier one.
func (k Known) key() [6]string {
	key := [6]string{k.Component, k.From, k.To, k.Incident, k.Under}
	if strings.Contains(k.Under, UsersOwn) {
		key[5] = k.Report
	}
	return key
}

func (k Known) compare(o Known) int {
	return cmp.Or(cmp.Compare(k.Component, o.Component), cmp.Compare(k.Incident, o.Incident), bisect.Compare(k.From, o.From),
		bisect.Compare(k.To, o.To), cmp.Compare(k.Under, o.Under), cmp.Compare(k.When, o.When))
}

func (k Known) String() string {
	text := k.Verdict
	if k.Under != "" {
		text += " (" + k.Under + ")"
	}
	if k.When == "" {
		return text + ", by the record"
	}
	day, _, _ := strings.Cut(k.When, "T")
	return text + " on " + day + ", " + k.Report
}

func (k Known) check() error {
	day, _, _ := strings.Cut(k.When, "T")
	_, err := time.Parse(time.DateOnly, day)
	verdict := slices.Contains([]string{"GO", "NO-GO", "UNKNOWN"}, k.Verdict)
	if k.Incident != "" {
		verdict = bisect.OutcomeOf(framework.Verdict(k.Verdict)) != bisect.Skipped
	}
	switch {
	case k.Component == "", !semver.IsValid("v" + k.From), !semver.IsValid("v" + k.To):
		return errors.New("expected a component and two versions (from, to)")
	case err != nil:
		return fmt.Errorf("when: %q: expected a day such as 2026-11-27, or a time", k.When)
	case !verdict:
		return fmt.Errorf("verdict: %q: expected GO, NO-GO or UNKNOWN, or of an incident reproduced, missed, prevented or refused", k.Verdict)
	}
	return nil
}

//go:embed known.jsonl
var builtIn []byte

// Recorded are the results that this relapse was built with.
func Recorded() ([]Known, error) { return ReadKnown(bytes.NewReader(builtIn)) }

// ReadKnown reads a file of results.
func ReadKnown(from io.Reader) (all []Known, err error) {
	for lines := json.NewDecoder(from); ; {
		var k Known
		if err := lines.Decode(&k); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("result %d: %w", len(all)+1, err)
		}
		if err := k.check(); err != nil {
			return nil, fmt.Errorf("result %d: %w", len(all)+1, err)
		}
		all = append(all, k)
	}
}

// Merge adds results: of two of the same versions, incident and settings the later one stays.
func Merge(all []Known, more ...Known) []Known {
	newest := map[[6]string]Known{}
	for _, k := range slices.Concat(all, more) {
		if was, there := newest[k.key()]; !there || was.When <= k.When {
			newest[k.key()] = k
		}
	}
	return slices.SortedFunc(maps.Values(newest), Known.compare)
}
