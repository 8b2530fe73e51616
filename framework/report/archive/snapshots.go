package archive

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
)

// Replacing replaces the addresses and names of some snapshots, and in texts about them, each by
// one replacement. Unlike those of a run, none can be recovered.
type Replacing struct{ x *redactor }

// Replace chooses the replacements for all names and addresses of snapshots. Others are further
// names, by the word that their replacements begin with; texts are further ones that may hold
// addresses.
func Replace(snapshots []snapshot.Snapshot, others map[string][]string, texts ...string) (*Replacing, error) {
	x := newRedactor()
	contents := scanner{ip: x.seen, mac: func(m [6]byte) [6]byte { return m }}
	for i, s := range snapshots {
		text, err := json.Marshal(s)
		if err != nil {
			return nil, fmt.Errorf("replacing names and addresses of snapshot %d: %w", i+1, err)
		}
		x.objects(s)
		x.lookAlikes(string(text))
		contents.json(text, func(string) bool { return false })
	}
	for _, text := range texts {
		x.lookAlikes(text)
		contents.text(text)
	}
	members := report.Topology{}
	for _, kind := range slices.Sorted(maps.Keys(others)) {
		for _, name := range slices.Compact(slices.Sorted(slices.Values(others[kind]))) {
			members.Members = append(members.Members, report.Member{Kind: kind, Name: name})
		}
	}
	if _, err := x.choose(Declared{}, report.Report{Topology: &members}, ""); err != nil {
		return nil, fmt.Errorf("replacing names and addresses of snapshots: %w", err)
	}
	return &Replacing{x}, nil
}

// Snapshot returns a snapshot with replacements.
func (r *Replacing) Snapshot(s snapshot.Snapshot) (snapshot.Snapshot, error) {
	var to snapshot.Snapshot
	text, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(r.x.json(text, keepsKey), &to)
	}
	if err != nil {
		return to, fmt.Errorf("replacing names and addresses of a snapshot: %w", err)
	}
	for i := range to.Sources { // a namespace may have the name of a source
		to.Sources[i].Name = s.Sources[i].Name
	}
	return to, nil
}

// JSON returns JSON with replacements in its values.
func (r *Replacing) JSON(text []byte) []byte {
	return r.x.json(text, func(string) bool { return true })
}

// Text returns a text with replacements.
func (r *Replacing) Text(text string) string { return r.x.text(text) }
