package qualify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/component/cilium/labvalues"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/host"
)

type Request struct {
	Component, From, To string
	// Config is the user's own configuration, may be nil, and Source its source.
	Config *ConfigMap
	Source string
	// Values are the user's values of the vendor's chart, may be nil. Settings are the user's other settings.
	Values   *Values
	Settings upgrade.Settings
	// Told are the clauses that CheckManifests returned.
	Told       []string
	Thresholds Thresholds
	// Subnets is the prefix into which the networks of all labs are moved in turn; zero: the documented subnets.
	Subnets netip.Prefix
	Command string // repeats the qualification
	// Known are results of earlier runs in place of runs of incidents; nil: all incidents run.
	Known []advise.Known
}

// Runner carries out a qualification: it asks part after part, and stores what is known after each.
type Runner struct {
	Request
	Dir      string          // of the qualification. Run needs it
	Relapse  string          // which program does it
	Progress engine.Progress // not nil

	inputs     Inputs
	trials     []trial
	refs       map[string]string // an image of each version
	catalogue  *images.Catalogue // has the refs; nil before LookUp
	upgradable bool              // an upgrade of the component is declared
	declared   upgrade.Upgrade   // the upgrade, if upgradable
	began      time.Time
	earlier    *Qualification // the resumed qualification; nil if this one is new
	broken     []error
}

// Parts do the work of a qualification.
type Parts interface {
	// Available returns an error if the module proxy does not have the version of an image. It builds nothing.
	Available(ctx context.Context, ref string) error
	// Incident makes a lab for a scenario; at is the scenario at a version.
	Incident(s framework.Scenario, at func(version string) (framework.Scenario, error)) VersionLab
	// Configuration asks both versions of the inputs about a configuration.
	Configuration(ctx context.Context, inputs Inputs, config ConfigMap) (Configuration, error)
	// Upgrade makes an upgrade on a lab under traffic, and back. Its record and evidence go into a folder.
	Upgrade(ctx context.Context, u upgrade.Upgrade, from, to, dir string) (upgrade.Measures, error)
	// Recorded returns the measures of the record that Upgrade left in a folder.
	Recorded(u upgrade.Upgrade, from, to, dir string) (upgrade.Measures, error)
	// Unfit reports whether an error says that this machine cannot run labs.
	Unfit(err error) bool
}

// VersionLab judges versions on one lab, which Down removes.
type VersionLab interface {
	bisect.Versions
	Down() error
}

// New prepares a qualification. The scenarios may test the component. The error says what is wrong with the request.
func New(q Request, all []framework.Scenario) (*Runner, error) {
	r := &Runner{Request: q, Progress: engine.Silent, began: time.Now()}
	var err error
	if r.upgradable = upgrade.Has(q.Component); r.upgradable {
		if r.declared, err = upgrade.Of(q.Component, q.From, q.To, q.settings()); err != nil {
			return nil, err
		}
	}
	if r.trials, err = trialsOf(all, q.Component, q.From, q.To); err != nil {
		return nil, err
	}
	for i := range r.trials {
		s := &r.trials[i].scenario
		if r.declared.Topology.Dual && slices.Contains(s.Parameters, framework.Family) {
			if *s, err = s.Set(map[string]string{framework.Family.Name: framework.Dual}); err != nil {
				return nil, err
			}
		}
		if q.Subnets.IsValid() {
			if *s, err = s.Within(q.Subnets); err != nil {
				return nil, fmt.Errorf("--subnets: %w", err)
			}
		}
	}
	if err := r.plan(); err != nil {
		return nil, err
	}
	return r, r.recall(all)
}

// recall takes results of earlier runs, with IPv4 alone, in place of runs, unless they contradict the scenario.
func (r *Runner) recall(all []framework.Scenario) error {
	if len(r.Known) == 0 || len(r.trials) == 0 || r.inputs.Family != "" {
		return nil
	}
	advice, err := advise.Advise(each.Of(all, advise.Of), r.Known, r.Component, r.From, r.To, nil)
	if err != nil {
		return err
	}
	for _, k := range advice.Incidents {
		for n := range r.inputs.Incidents {
			i := &r.inputs.Incidents[n]
			for _, result := range k.Here {
				seen := Seen{Outcome: bisect.OutcomeOf(framework.Verdict(result.Verdict)), Verdict: result.Verdict, Why: result.String(), Known: true}
				recorded, there := each.First(k.Recorded, func(r advise.Known) bool { return r.From == result.From && r.To == result.To })
				switch {
				case i.Name != k.Name, result.When == "":
				case there && bisect.OutcomeOf(framework.Verdict(recorded.Verdict)) != seen.Outcome:
				case i.OfUpgrade, result.To == r.To:
					i.To = seen
				default:
					i.From = seen
				}
			}
		}
	}
	return nil
}

func (q Request) settings() upgrade.Settings {
	s := q.Settings
	s.Values, s.Subnets = q.Values.OfLab(), q.Subnets
	return s
}

// Topologies are the topologies of the labs that the qualification brings up.
func (r *Runner) Topologies() []topology.Topology {
	all := each.Of(r.trials, func(t trial) topology.Topology { return t.scenario.Topology })
	if r.upgradable {
		all = append(all, r.declared.Topology)
	}
	return all
}

// Fit is an error if this machine cannot run the upgrade.
func (r *Runner) Fit() (err error) {
	if r.upgradable && r.declared.Fit != nil {
		err = r.declared.Fit()
	}
	if r.declared.Topology.Dual {
		err = errors.Join(err, host.PassesIPv6())
	}
	return err
}

// plan puts every part into the inputs, as not run yet.
func (r *Runner) plan() error {
	r.inputs = Inputs{
		Component: r.Component, From: r.From, To: r.To, Subnets: r.Subnets,
		Mode: r.declared.Mode, Under: r.declared.Under, Replaced: slices.Concat(r.Told, r.declared.Replaced), Upgrade: Upgrade{Why: notRun},
	}
	if r.declared.Topology.Dual {
		r.inputs.Family = framework.Dual
	}
	if other := r.declared.Otherwise; other != nil {
		r.inputs.Otherwise = &Otherwise{other.Under, Upgrade{Why: notRun}}
	}
	text, err := json.Marshal(r.settings())
	if err != nil {
		return fmt.Errorf("identifying the settings of the upgrade: %w", err)
	}
	r.inputs.Settings = fmt.Sprintf("%x", sha256.Sum256(text)) // values may hold secrets, and are not stored
	if len(r.trials) == 0 {
		r.inputs.LeftOut = []string{"no incident of the catalogue is about " + r.Component}
	}
	r.trials = slices.DeleteFunc(r.trials, func(t trial) bool {
		if r.Values == nil {
			return false
		}
		why := advise.Impossible(t.scenario.NeedsValue, r.Values.OfLab())
		if why == "" {
			return false
		}
		r.inputs.LeftOut = append(r.inputs.LeftOut, fmt.Sprintf("%s cannot happen with your values: %s", t.scenario.Incident.Name, why))
		return true
	})
	for _, t := range r.trials {
		i, err := t.incident()
		if err != nil {
			return err
		}
		r.inputs.Incidents = append(r.inputs.Incidents, i)
	}
	c := &r.inputs.Configuration
	switch _, readable := ConfigMapOf(r.Component); {
	case r.Values != nil:
		r.inputs.Values = r.Values
		if r.inputs.Family == "" {
			r.Values.Parts = slices.DeleteFunc(r.Values.Parts, func(p labvalues.Part) bool { return p.Name == labvalues.DualStack })
		}
		c.Source, c.Charts, c.Drifts = strings.Join(r.Values.Sources, ", "), &r.Values.rendered, r.Values.refusals
	case r.Settings.Config != "" || r.Settings.Manifests != "":
		c.Source = r.Source
		c.NotAsked = "the keys of " + r.Source + " are not compared: both versions run with it on the lab of the upgrade"
	case !readable:
		c.NotAsked = fmt.Sprintf("the effect on the configuration of %s (its flags and environment) is not checked: "+
			"relapse has no table of its keys", r.Component)
	case r.Config == nil:
		c.NotAsked = "the effect on your configuration is not checked: none was given (--config or --values)"
	default:
		c.NotAsked, c.Decides = effect+notRun, true
	}
	if r.Config != nil {
		c.Source, c.ConfigMap, c.Keys = r.Source, r.Config.String(), len(r.Config.Data)
	}
	if !r.upgradable {
		r.inputs.Upgrade.Why = "this version of relapse has no upgrade of " + r.Component
	}
	if c.Charts != nil && c.Charts.Refused != "" {
		r.upgradable, r.inputs.Upgrade.Why, r.inputs.Otherwise = false, "the chart of "+r.To+" refuses the values: "+c.Charts.Refused, nil
	}
	return nil
}

// effect begins the reason why the configuration was not checked.
const effect = "the effect on the configuration: "

// LookUp finds out which releases there are, and by which recipes both versions are built. The error is an
// *images.UnknownVersionError if there is no recipe.
func (r *Runner) LookUp(ctx context.Context, c *images.Catalogue) error {
	r.refs, r.catalogue = map[string]string{}, c
	if err := r.ask(c); err != nil {
		return err
	}
	for _, version := range []string{r.From, r.To} {
		var err error
		if r.refs[version], err = r.image(c, version); err != nil {
			return err
		}
	}
	r.leaveOut(c)
	releases, err := c.Releases(ctx, r.Component)
	if err != nil {
		return err
	}
	r.inputs.Path = PathOf(releases, r.From, r.To)
	return nil
}

// Published is an error if the module proxy does not have a version. LookUp comes first.
func (r *Runner) Published(ctx context.Context) error {
	var errs []error
	for _, version := range []string{r.From, r.To} {
		errs = append(errs, onlyNotPublished(r.catalogue.Derive(ctx, r.refs[version])))
	}
	return errors.Join(errs...)
}

// Resume takes over the results of an earlier qualification of the same request, from its folder. The configuration is
// checked again: the file may have changed.
func (r *Runner) Resume(dir string) error {
	earlier, err := Read(dir)
	if err != nil {
		return err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // it may be the link latest
		return err
	}
	was := earlier.Inputs
	if was.Component != r.Component || was.From != r.From || was.To != r.To {
		return fmt.Errorf("%s is of %s %s to %s", dir, was.Component, was.From, was.To)
	}
	if was.Subnets != r.Subnets {
		return fmt.Errorf("%s has its labs on %s, and this one on %s (--subnets)", dir, onSubnets(was.Subnets), onSubnets(r.Subnets))
	}
	if (was.Values == nil) != (r.Values == nil) || r.Values != nil && !slices.Equal(was.Values.Sources, r.Values.Sources) {
		return fmt.Errorf("%s is of other values: give the same files with --values", dir)
	}
	if was.Values == nil && was.Configuration.Source != "" && r.inputs.Configuration.Source == "" {
		given := "the ConfigMap " + was.Configuration.ConfigMap + ": give it again with --config"
		if was.Configuration.ConfigMap == "" {
			given = "the settings in " + was.Configuration.Source + ": give them again"
		}
		return fmt.Errorf("%s also has %s", dir, given)
	}
	if was.Mode != r.inputs.Mode {
		return fmt.Errorf("%s is of mode %s, not of %s", dir, was.Mode, r.inputs.Mode)
	}
	if was.Family != r.inputs.Family {
		return fmt.Errorf("%s is of the families %s, not of %s", dir, cmp.Or(was.Family, "ipv4"), cmp.Or(r.inputs.Family, "ipv4"))
	}
	for n := range r.inputs.Incidents {
		now := &r.inputs.Incidents[n]
		then, _ := each.First(was.Incidents, func(i Incident) bool { return i.Name == now.Name })
		resume := func(seen *Seen, before Seen) {
			if before.Verdict != "" && !before.Known { // other versions may be available, or build, by now
				*seen = before
			}
		}
		resume(&now.From, then.From)
		resume(&now.To, then.To)
	}
	if was.Upgrade.Measures != nil && was.Upgrade.Why == "" && was.Settings == r.inputs.Settings { // or it is measured again
		r.inputs.Upgrade = was.Upgrade
	}
	if o := was.Otherwise; o != nil && o.Measures != nil && o.Why == "" && was.Settings == r.inputs.Settings && r.inputs.Otherwise != nil {
		r.inputs.Otherwise = o
	}
	r.earlier, r.Dir = &earlier, dir
	return nil
}

func onSubnets(prefix netip.Prefix) string {
	if !prefix.IsValid() {
		return "the documented subnets"
	}
	return "subnets in " + prefix.String()
}

func (r *Runner) WritePlan(out io.Writer) {
	fmt.Fprintf(out, "qualify %s %s to %s\n", r.Component, r.From, r.To)
	r.writeSubnets(out)
	line := func(name, text string) { fmt.Fprintf(out, "  %-14s %s\n", name, text) }
	for _, row := range r.inputs.Path.rows(r.From, r.To) {
		line(row.Name, row.Says)
	}
	if r.Values != nil {
		r.Values.write(line)
	}
	if c := r.inputs.Configuration; c.Charts != nil {
		line(PartConfiguration, fmt.Sprintf("%s of both charts, from %s", c.Charts.ConfigMap, c.Source))
	} else if c.Decides {
		line(PartConfiguration, fmt.Sprintf("%s, %d keys, compared by what the vendor states of %s and %s", c.ConfigMap, c.Keys, r.From, r.To))
	} else {
		line(PartConfiguration, c.NotAsked)
	}
	for _, why := range r.inputs.LeftOut {
		line(PartIncident, why)
	}
	for n, t := range r.trials {
		if why := r.inputs.Incidents[n].NotAsked; why != "" {
			line(PartIncident, fmt.Sprintf("%s is not checked: %s", t.scenario.Incident.Name, why))
			continue
		}
		line(PartIncident, t.String())
		for _, version := range t.versions() {
			switch seen := t.seen(&r.inputs.Incidents[n], version); {
			case seen.Known:
				line("", fmt.Sprintf("  %s is known, and not run (--fresh runs it): %s", version, seen.Why))
			case seen.Verdict != "":
				line("", fmt.Sprintf("  %s: %s, from the earlier run", version, seen.Verdict))
			}
		}
	}
	switch {
	case !r.upgradable:
		line(PartUpgrade, r.inputs.Upgrade.Why)
	case r.inputs.Upgrade.Measures != nil:
		line(PartUpgrade, "measured in the earlier run, whose record is judged again")
	default:
		line(PartUpgrade, fmt.Sprintf("from %[1]s to %[2]s on a lab under traffic, node by node, and back; "+
			"in the middle of both an agent that is not replaced yet is restarted; "+
			"at last one node gets %[2]s, and %[1]s again at once", r.From, r.To))
	}
	if r.inputs.Mode != "" {
		line("", "mode "+r.inputs.Mode)
	}
	if r.inputs.Family != "" {
		line("", withBoth+": each path of IPv4 has one of IPv6 beside it")
	}
	if r.inputs.Under != "" {
		line("", r.inputs.Under)
	}
	if r.inputs.Otherwise != nil {
		line("", "and once more "+r.inputs.Otherwise.Under)
	}
	for _, what := range r.inputs.Replaced {
		line("", what)
	}
}

// Result judges the results so far.
func (r *Runner) Result() Qualification {
	q := Judge(r.inputs, r.Thresholds, r.Command)
	q.Began, q.TookMS, q.Relapse = r.began, time.Since(r.began).Milliseconds(), r.Relapse
	if r.earlier != nil {
		q.Began, q.TookMS = r.earlier.Began, q.TookMS+r.earlier.TookMS
	}
	return q
}

// Broken joins the errors that kept parts from being judged and say nothing about a version.
func (r *Runner) Broken() error { return errors.Join(r.broken...) }

func (r *Runner) save() error { return r.Result().Write(r.Dir) }

// Run carries out all parts without a result. After engine.ErrInterrupted, an *images.NotPublishedError, or an error
// after which nothing can run, it stores the results so far and returns the error.
func (r *Runner) Run(ctx context.Context, p Parts) error {
	if err := r.save(); err != nil {
		return err
	}
	if err := r.checkAvailable(ctx, p); err != nil {
		return err
	}
	if err := r.askConfiguration(ctx, p); err != nil {
		return err
	}
	if err := r.upgrades(ctx, p); err != nil {
		return err
	}
	for n, t := range r.trials {
		if r.inputs.Incidents[n].NotAsked != "" {
			continue
		}
		if err := r.try(ctx, p, t, &r.inputs.Incidents[n]); err != nil {
			return err
		}
	}
	if err := r.save(); err != nil {
		return err
	}
	return report.SetLatest(r.Dir)
}

// upgrades comes before the incidents: people wait for it, and a NO-GO that follows from it is certain.
func (r *Runner) upgrades(ctx context.Context, p Parts) error {
	if !r.upgradable {
		return nil
	}
	if err := r.upgrade(ctx, p, r.declared, &r.inputs.Upgrade, PartUpgrade); err != nil {
		return err
	}
	if err := r.save(); err != nil {
		return err
	}
	if r.inputs.Otherwise != nil {
		if err := r.upgrade(ctx, p, *r.declared.Otherwise, &r.inputs.Otherwise.Upgrade, PartOtherwise); err != nil {
			return err
		}
	}
	inputs := r.inputs
	inputs.Incidents = nil // their verdicts may be an earlier run's
	if q := Judge(inputs, r.Thresholds, r.Command); q.Verdict == NoGo {
		r.Progress.Note(scope, "certain, whatever the incidents say: "+q.Heading())
	}
	return r.save()
}

// upgrade measures the upgrade, or judges a resumed upgrade's record again: an older relapse may have measured less.
func (r *Runner) upgrade(ctx context.Context, p Parts, u upgrade.Upgrade, result *Upgrade, folder string) error {
	dir := filepath.Join(r.Dir, folder)
	if result.Measures != nil {
		m, err := p.Recorded(u, r.From, r.To, dir)
		if err == nil {
			result.Measures = &m
			return nil
		}
		r.Progress.Note(scope, "the upgrade is measured again, because its record cannot be judged: "+firstLine(err))
	}
	m, err := p.Upgrade(ctx, u, r.From, r.To, dir)
	if err := r.keep(ctx, p, err); err != nil {
		return err
	}
	*result = Upgrade{Measures: &m}
	if err != nil {
		result.Why = firstLine(err)
	}
	return nil
}

const scope = "qualify"

// checkAvailable checks before a lab comes up that the versions, and modules that the upgrade needs, are published.
func (r *Runner) checkAvailable(ctx context.Context, p Parts) error {
	var missing []error
	for _, version := range []string{r.From, r.To} {
		ended := r.Progress.Step(scope, version+" is available")
		err := p.Available(ctx, r.refs[version])
		ended(err)
		if upgrades := r.upgradable && r.inputs.Upgrade.Measures == nil; !upgrades || !errors.As(err, new(*images.NotPublishedError)) {
			err = onlyNotPublished(err)
		}
		missing = append(missing, err)
	}
	if err := r.keep(ctx, p, errors.Join(missing...)); err != nil {
		return err
	}
	return r.noteBuilt()
}

// noteBuilt fills in Inputs.Built. The versions must be available.
func (r *Runner) noteBuilt() error {
	if r.catalogue == nil {
		return nil
	}
	for version, ref := range r.refs {
		recipe, err := r.catalogue.Recipe(ref)
		if err != nil {
			return err
		}
		differs, err := recipe.Differs()
		if err != nil {
			return err
		}
		if differs == "" {
			continue
		}
		if r.inputs.Built == nil {
			r.inputs.Built = map[string]string{}
		}
		if r.inputs.Built[version], err = recipe.Packaging(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) askConfiguration(ctx context.Context, p Parts) error {
	if !r.inputs.Configuration.Decides {
		return nil
	}
	c, err := p.Configuration(ctx, r.inputs, *r.Config)
	if err := r.keep(ctx, p, err); err != nil {
		return err
	}
	if err != nil {
		c.NotAsked, c.Decides = effect+firstLine(err), true
	}
	c.Source, c.ConfigMap, c.Keys = r.inputs.Configuration.Source, r.inputs.Configuration.ConfigMap, r.inputs.Configuration.Keys
	r.inputs.Configuration = c
	return r.save()
}

func (r *Runner) try(ctx context.Context, p Parts, t trial, i *Incident) (err error) {
	lab := p.Incident(t.scenario, t.at)
	defer func() { err = errors.Join(err, lab.Down()) }()
	for _, version := range t.versions() {
		if ctx.Err() != nil {
			return engine.ErrInterrupted
		}
		seen := t.seen(i, version)
		if seen.Verdict != "" { // an earlier run's, or an earlier qualification's
			continue
		}
		r.Progress.Note(scope, fmt.Sprintf("%s: %s is next", i.Name, version))
		step, err := lab.Judge(ctx, version)
		if err := r.keep(ctx, p, err); err != nil {
			return err
		}
		if err := r.keep(ctx, p, onlyNotPublished(step.Err)); err != nil {
			return err
		}
		*seen = Seen{Outcome: step.Outcome, Verdict: step.Verdict, Why: step.Why, Report: step.Report}
		seen.When = time.Now().UTC().Truncate(time.Second)
		if err != nil {
			*seen = Seen{Outcome: bisect.Skipped, Why: firstLine(err)}
		}
		if err := r.save(); err != nil {
			return err
		}
		r.Progress.Note(scope, fmt.Sprintf("%s: %s: %s", i.Name, version, cmp.Or(seen.Verdict, seen.Why)))
	}
	return nil
}

// keep returns an error after which nothing more can run: an interrupt, an unpublished version, an unfit machine. It
// keeps any other error, also of a build, for Broken: the part is not judged. If the module proxy does not answer,
// images that are built already still work.
func (r *Runner) keep(ctx context.Context, p Parts, err error) error {
	switch {
	case ctx.Err() != nil && !errors.Is(err, engine.ErrInterrupted):
		return engine.ErrInterrupted // the interrupt causes other errors
	case err == nil, errors.As(err, new(*images.UnreachableError)):
		return nil
	case errors.As(err, new(*images.BuildError)):
	case errors.Is(err, engine.ErrInterrupted), errors.As(err, new(*images.NotPublishedError)), p.Unfit(err):
		return err
	}
	r.broken = append(r.broken, err)
	return nil
}

// onlyNotPublished returns err if the version itself is not published, and nil if it is a module that it requires:
// one image alone may need that.
func onlyNotPublished(err error) error {
	if missing, ok := errors.AsType[*images.NotPublishedError](err); ok && !missing.Required {
		return err
	}
	return nil
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func (r *Runner) writeSubnets(out io.Writer) {
	for _, t := range r.trials {
		for _, line := range t.scenario.Subnets() {
			fmt.Fprintf(out, "  %s\n", line)
		}
	}
	if r.upgradable && r.Subnets.IsValid() {
		lab := r.declared.Topology
		for _, n := range lab.Networks {
			fmt.Fprintf(out, "  network %q of %s has the subnet %s\n", n.Name, lab.Name, n.Subnet)
		}
	}
}
