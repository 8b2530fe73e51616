// Package merge makes one report of several shards of a run: variants that ran in other
// processes or on other machines.
package merge

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/junit"
	"github.com/relapse-dev/relapse/framework/report/page"
	"github.com/relapse-dev/relapse/framework/report/rundir"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Shard is a stored run.
type Shard struct {
	Dir    string
	Report report.Report
}

// Find reads the shards below some folders: the newest run of each scenario in each folder. Older
// is how many older runs were left out. Empty are the folders without a run, or that do not exist.
// With replaced an older run counts as well if its verdict differs from the newest one's and was
// not inconclusive, as the verdict of a run which was ended from outside is: another run must not hide it.
func Find(replaced bool, dirs ...string) (shards []Shard, older int, empty []string, err error) {
	for _, dir := range dirs {
		runs, err := page.Runs(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, 0, nil, err
		}
		if len(runs) == 0 {
			empty = append(empty, dir)
			continue
		}
		newest, all := map[string]Shard{}, map[string][]Shard{}
		for _, run := range runs {
			// All of them, before anything is written.
			if err := rundir.Check(run); err != nil {
				return nil, 0, nil, err
			}
			r, err := report.Read(filepath.Join(run, "report.json"))
			if err != nil {
				return nil, 0, nil, err
			}
			all[r.Scenario] = append(all[r.Scenario], Shard{run, r})
			last, there := newest[r.Scenario]
			if !there || r.Started.After(last.Report.Started) {
				newest[r.Scenario] = Shard{run, r}
			}
		}
		for _, scenario := range slices.Sorted(maps.Keys(newest)) {
			last := newest[scenario]
			shards = append(shards, last)
			for _, s := range all[scenario] {
				switch {
				case s.Dir == last.Dir:
				case replaced && s.Report.Verdict != last.Report.Verdict && s.Report.Verdict != string(framework.Inconclusive):
					shards = append(shards, s)
				default:
					older++
				}
			}
		}
	}
	return shards, older, empty, nil
}

// Missing stands for the scenarios that were expected and have no report: an
// inconclusive report of each, in order of name.
func Missing(expected []string, reports []report.Report) []report.Report {
	var missing []report.Report
	for _, name := range slices.Compact(slices.Sorted(slices.Values(expected))) {
		if !slices.ContainsFunc(reports, func(r report.Report) bool { return r.Scenario == name }) {
			missing = append(missing, report.Report{
				Scenario: name, Verdict: string(framework.Inconclusive),
				Merged: &report.Merged{Conflicts: []string{"no shard has a report of it"}},
			})
		}
	}
	return missing
}

// ByScenario groups shards by scenario, in order of its name.
func ByScenario(shards []Shard) [][]Shard {
	parts := map[string][]Shard{}
	for _, s := range shards {
		parts[s.Report.Scenario] = append(parts[s.Report.Scenario], s)
	}
	return each.Of(slices.Sorted(maps.Keys(parts)), func(scenario string) []Shard { return parts[scenario] })
}

// Write merges shards of one scenario into a new run below output, with the evidence
// of all of them, and returns its folder. Variants are the names of those that it must have; with them a
// conflict between shards, such as two versions of relapse or two digests of an image, leaves a run that passed
// inconclusive. None: whatever there is will do.
func Write(output string, shards []Shard, variants ...string) (dir string, merged report.Report, err error) {
	merged, from, err := Reports(shards)
	if err != nil {
		return "", merged, err
	}
	for _, name := range variants {
		is := func(v report.Variant) bool { return v.Name == name }
		if !slices.ContainsFunc(merged.Variants, is) &&
			!slices.ContainsFunc(merged.NotRun, func(v report.NotRun) bool { return v.Name == name }) {
			merged.Merged.Conflicts = append(merged.Merged.Conflicts, "no shard has variant "+name)
		}
	}
	if len(variants) > 0 && len(merged.Merged.Conflicts) > 0 {
		merged.Verdict = string(framework.Worst(framework.RunVerdict(merged.Verdict), framework.Inconclusive))
	}
	if dir, err = report.NewRun(output, merged.Scenario, merged.Started); err != nil {
		return "", merged, err
	}
	merged.Run = filepath.Base(dir)
	for i, v := range merged.Variants {
		if v.EvidenceDir == "" {
			continue
		}
		if err := copyFolder(dir, v.EvidenceDir, from[i].Dir, v.EvidenceDir); err != nil {
			return "", merged, err
		}
	}
	for n, s := range shards {
		if err := copyFolder(dir, path.Join("evidence", fmt.Sprintf("lab-%d", n+1)), s.Dir, "evidence/lab"); err != nil {
			return "", merged, err
		}
	}
	if err := errors.Join(merged.Write(dir), page.Write(dir, nil), junit.Write(junit.InFolder(dir), merged)); err != nil {
		return "", merged, err
	}
	return dir, merged, report.SetLatest(dir)
}

func copyFolder(toRun, to, fromRun, from string) error {
	target, err := rundir.Open(toRun)
	if err != nil {
		return fmt.Errorf("copying evidence: %w", err)
	}
	defer target.Close()
	source, err := rundir.Open(fromRun)
	if err != nil {
		return fmt.Errorf("copying evidence: %w", err)
	}
	defer source.Close()
	if err := target.Copy(to, source, from); err != nil {
		return fmt.Errorf("copying the evidence %s: %w", filepath.Join(fromRun, from), err)
	}
	return nil
}

// Reports makes one report of the shards of one scenario, and returns the shard that each
// variant is from. Shards of different ablations, or on different subnets, are an error.
func Reports(shards []Shard) (merged report.Report, from []Shard, err error) {
	merged = shards[0].Report
	merged.Merged, merged.Variants, merged.NotRun, merged.Steps, merged.Guests = &report.Merged{}, []report.Variant{}, nil, nil, nil
	merged.Unfinished, merged.CPU, merged.Modules = nil, nil, nil
	merged.Images, merged.Origins = map[string]string{}, map[string]string{}
	m := merger{merged: &merged, from: map[string]int{}, shards: shards}
	for i, s := range shards {
		if s.Report.Ablated != shards[0].Report.Ablated {
			return merged, nil, fmt.Errorf("%s is %s, and %s is %s: they are not parts of one run",
				shards[0].Dir, without(shards[0].Report), s.Dir, without(s.Report))
		}
		for _, before := range shards[:i] {
			if err := sameLab(before, s); err != nil {
				return merged, nil, err
			}
		}
		m.add(i, s)
	}
	var roles []framework.Role
	for _, v := range merged.Variants {
		roles = append(roles, framework.Role(v.Role))
		from = append(from, shards[m.from[v.Title()]])
	}
	merged.NotRun = slices.DeleteFunc(merged.NotRun, func(n report.NotRun) bool {
		return slices.ContainsFunc(merged.Variants, func(v report.Variant) bool { return v.Name == n.Name })
	})
	if merged.Half = ""; merged.Ablated == "" {
		merged.Half = framework.Half(roles...)
	}
	slices.SortStableFunc(merged.Steps, func(a, b report.Step) int { return a.Began.Compare(b.Began) })
	return merged, from, nil
}

// sameLab returns an error if two shards had one network on different subnets, or one router
// of different kinds: the merged report has one topology for all.
func sameLab(first, other Shard) error {
	if first.Report.Topology == nil || other.Report.Topology == nil {
		return nil
	}
	before := first.Report.Topology.Subnets()
	for _, n := range other.Report.Topology.Networks {
		if subnet, both := before[n.Name]; both && subnet != n.Subnet {
			return fmt.Errorf("network %q is %s in %s, and %s in %s: they are not parts of one run",
				n.Name, subnet, first.Dir, n.Subnet, other.Dir)
		}
	}
	software := func(m report.Member) string { return cmp.Or(m.Software, string(topology.GoBGP)) }
	for _, m := range other.Report.Topology.Members {
		i := slices.IndexFunc(first.Report.Topology.Members, func(o report.Member) bool { return o.Name == m.Name })
		if m.Kind != report.RouterMember || i < 0 {
			continue
		}
		if was := first.Report.Topology.Members[i]; software(was) != software(m) {
			return fmt.Errorf("router %q is %s in %s, and %s in %s: they are not parts of one run",
				m.Name, software(was), first.Dir, software(m), other.Dir)
		}
	}
	return nil
}

func without(r report.Report) string {
	if r.Ablated == "" {
		return "without an ablation"
	}
	return "without " + r.Ablated
}

type merger struct {
	merged *report.Report
	shards []Shard
	from   map[string]int // the shard of a variant, by its title
}

func (m *merger) conflict(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(m.merged.Merged.Conflicts, text) {
		m.merged.Merged.Conflicts = append(m.merged.Merged.Conflicts, text)
	}
}

func (m *merger) add(n int, s Shard) {
	r, into := s.Report, m.merged
	into.Merged.Runs = append(into.Merged.Runs, s.Dir)
	into.Verdict = string(framework.Worst(framework.RunVerdict(into.Verdict), framework.RunVerdict(r.Verdict)))
	if r.Started.Before(into.Started) {
		into.Started = r.Started
	}
	m.addOrigin(n, s)
	m.addImages(s)
	for _, one := range r.Modules {
		if !slices.Contains(into.Modules, one) {
			into.Modules = append(into.Modules, one)
		}
	}
	if r.Unfinished != nil {
		m.conflict("%s has not ended; running steps: %s", s.Dir, strings.Join(r.Unfinished.Steps, ", "))
		into.Unfinished = r.Unfinished
		into.Verdict = string(framework.Worst(framework.RunVerdict(into.Verdict), framework.Inconclusive))
	}
	if r.CPU != nil && (into.CPU == nil || r.CPU.Others > into.CPU.Others) {
		into.CPU = r.CPU
	}
	if r.Topology != nil && (into.Topology == nil || len(r.Topology.Members) > len(into.Topology.Members)) {
		into.Topology = r.Topology // a shard lacks the nodes of variants that did not run there
	}
	for _, g := range r.Guests {
		if !slices.ContainsFunc(into.Guests, func(have report.Guest) bool { return have.Node == g.Node }) {
			into.Guests = append(into.Guests, g)
		}
	}
	// The shards ran in parallel.
	into.Timings.Images = max(into.Timings.Images, r.Timings.Images)
	into.Timings.Lab = max(into.Timings.Lab, r.Timings.Lab)
	into.Timings.Total = max(into.Timings.Total, r.Timings.Total)
	for _, step := range r.Steps {
		if lab := step.Scope == report.LabScope || step.Scope == report.SecondLabScope; lab && len(m.shards) > 1 {
			step.Scope = fmt.Sprintf("%s %d", step.Scope, n+1)
		}
		into.Steps = append(into.Steps, step)
	}
	for _, not := range r.NotRun {
		if !slices.Contains(into.NotRun, not) {
			into.NotRun = append(into.NotRun, not)
		}
	}
	for _, v := range r.Variants {
		m.variant(n, v)
	}
}

// addOrigin notes where a shard ran and by which command, and how that differs from the first.
func (m *merger) addOrigin(n int, s Shard) {
	r, into := s.Report, m.merged
	first := m.shards[0]
	if n == 0 {
		return
	}
	if r.Relapse != first.Report.Relapse {
		m.conflict("relapse is %q in %s, and %q in %s", first.Report.Relapse, first.Dir, r.Relapse, s.Dir)
	}
	if one, other := fmt.Sprint(first.Report.Machine), fmt.Sprint(r.Machine); one != other {
		m.conflict("the machine is %s in %s, and %s in %s: times do not compare", one, first.Dir, other, s.Dir)
	}
	if r.Command != "" && !slices.Contains(strings.Split(into.Command, " && "), r.Command) {
		commands := slices.DeleteFunc([]string{into.Command, r.Command}, func(c string) bool { return c == "" })
		into.Command = strings.Join(commands, " && ")
	}
}

func (m *merger) addImages(s Shard) {
	r, into := s.Report, m.merged
	for _, ref := range slices.Sorted(maps.Keys(r.Images)) {
		if digest, there := into.Images[ref]; there && digest != r.Images[ref] {
			m.conflict("image %s is %s in an earlier shard, and %s in %s", ref, digest, r.Images[ref], s.Dir)
		}
		into.Images[ref] = r.Images[ref]
	}
	for ref := range r.Images { // of reports without origins all are built
		origin := cmp.Or(r.Origins[ref], report.Built)
		if before, there := into.Origins[ref]; there && before != origin {
			m.conflict("image %s is %s in an earlier shard, and %s in %s", ref, before, origin, s.Dir)
		}
		into.Origins[ref] = origin
	}
	for ref, origin := range r.Origins { // of images that lab registries have copied
		into.Origins[ref] = cmp.Or(into.Origins[ref], origin)
	}
}

// variant adds a variant of a shard. If it ran in several shards, one whose verdict was
// not expected is taken. Different verdicts make the run inconclusive, unless it failed.
func (m *merger) variant(n int, v report.Variant) {
	into, title := m.merged, v.Title()
	before, twice := m.from[title]
	if !twice {
		into.Variants, m.from[title] = append(into.Variants, v), n
		return
	}
	i := slices.IndexFunc(into.Variants, func(have report.Variant) bool { return have.Title() == title })
	have := into.Variants[i]
	m.conflict("%s ran twice: %s in %s, and %s in %s", title, have.Verdict, m.shards[before].Dir, v.Verdict, m.shards[n].Dir)
	if have.Verdict != v.Verdict {
		into.Verdict = string(framework.Worst(framework.RunVerdict(into.Verdict), framework.Inconclusive))
	}
	if have.Verdict == have.Expected && v.Verdict != v.Expected {
		into.Variants[i], m.from[title] = v, n
	}
}
