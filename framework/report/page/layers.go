package page

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology/each"
)

// table is what each layer said of the object of a finding, before the fault and after it.
type table struct {
	Finding report.Finding
	Rows    []row
}

type row struct {
	Layer, Where, Before, After string
	// Disagrees is set if the layer, after the fault, gives the object to another node than its
	// owner, or says something else than before. First marks the topmost such row.
	Disagrees, First bool
}

const (
	maxTables = 6
	maxRows   = 30
)

// tables are the tables of the fault's findings, one an object, the key finding's first.
func tables(s stored) []table {
	var findings []report.Finding
	if key := s.key(); key != nil {
		findings = append(findings, *key)
	}
	for _, state := range []detect.State{detect.Active, detect.Pending, detect.Latent} {
		for _, f := range s.Findings {
			if f.State == state && (f.During == "fault" || f.During == "") {
				findings = append(findings, f)
			}
		}
	}
	var all []table
	seen := map[detect.Object]bool{}
	for _, f := range findings {
		if seen[f.Object] || len(all) == maxTables {
			continue
		}
		seen[f.Object] = true
		if t := newTable(s, f); len(t.Rows) > 0 {
			all = append(all, t)
		}
	}
	return all
}

func newTable(s stored, f report.Finding) table {
	t := table{Finding: f}
	type place struct{ layer, where string }
	var places []place
	said := map[place]*row{}
	gives := map[place]string{} // to which node, after the fault
	take := func(from *snapshot.Snapshot, afterFault bool) {
		if from == nil {
			return
		}
		for _, st := range from.Statements() {
			if !f.Concerns(st) {
				continue
			}
			at := place{string(st.Layer), st.Where}
			if said[at] == nil {
				said[at] = &row{Layer: at.layer, Where: at.where}
				places = append(places, at)
			}
			r := said[at]
			if afterFault {
				r.After, gives[at] = joined(r.After, st.Says), st.Node
			} else {
				r.Before = joined(r.Before, st.Says)
			}
		}
	}
	take(s.before, false)
	take(s.after, true)
	slices.SortStableFunc(places, func(a, b place) int {
		order := func(p place) int { return slices.Index(snapshot.Layers, snapshot.Layer(p.layer)) }
		return cmp.Or(order(a)-order(b), cmp.Compare(a.where, b.where))
	})
	if len(places) > 0 && f.Owner != "" && s.after != nil {
		t.Rows = append(t.Rows, row{Layer: "intended", Where: "owner, as " + f.Detector + " knows it", Before: f.Owner, After: f.Owner})
	}
	for _, at := range places {
		r := *said[at]
		node := gives[at]
		r.Disagrees = s.after != nil && (r.Before != r.After || f.Owner != "" && node != "" && node != f.Owner)
		t.Rows = append(t.Rows, r)
	}
	if len(t.Rows) == 0 {
		return t
	}
	if len(t.Rows) > maxRows {
		t.Rows = slices.DeleteFunc(t.Rows, func(r row) bool { return !r.Disagrees && r.Layer != "intended" })
		t.Rows = t.Rows[:min(len(t.Rows), maxRows)]
	}
	for _, p := range s.packetsOf(f) {
		t.Rows = append(t.Rows, row{
			Layer: "packet", Where: p.Name, Before: "none lost", After: fmt.Sprintf("%d of %d lost", p.Lost, p.Sent), Disagrees: p.Lost > 0,
		})
	}
	if i := slices.IndexFunc(t.Rows, func(r row) bool { return r.Disagrees }); i >= 0 {
		t.Rows[i].First = true
	}
	return t
}

func joined(before, more string) string {
	if before == "" {
		return more
	}
	return before + "\n" + more
}

// packetsOf are up to five impacted probes to or from the finding's owner; all without one.
func (s stored) packetsOf(f report.Finding) []report.Probe {
	on := map[string]string{}
	for _, e := range s.Ends {
		on[e.Name] = e.On
	}
	impacted := each.Where(s.Probes, func(p report.Probe) bool { return slices.Contains(s.ProbesHurt, p.Name) })
	if near := each.Where(impacted, func(p report.Probe) bool {
		return f.Owner != "" && slices.ContainsFunc(s.traffic, func(t probe.Timeline) bool {
			return t.Probe.Name == p.Name && (on[t.Probe.From] == f.Owner || on[t.Probe.To] == f.Owner)
		})
	}); len(near) > 0 {
		impacted = near
	}
	return impacted[:min(len(impacted), 5)]
}
