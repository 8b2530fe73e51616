package qualify

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// trial is one scenario's part of a qualification: at each of two versions, or with the upgrade itself.
type trial struct {
	scenario framework.Scenario
	// varied is the component's name in the scenario. If the upgrade is the incident, old is its name before the upgrade.
	varied, old string
	from, to    string
}

// trialsOf returns an error if no scenario tests the component and no upgrade of it is declared.
func trialsOf(all []framework.Scenario, component, from, to string) ([]trial, error) {
	var trials []trial
	var components []string
	for _, s := range all {
		components = append(components, each.Of(s.Tested, framework.Tested.Component)...)
		if varied, old := framework.VersionsOf(component, s.Tested); varied != "" {
			trials = append(trials, trial{scenario: s, varied: varied, old: old, from: from, to: to})
		}
	}
	if len(trials) == 0 && !upgrade.Has(component) {
		components = append(components, upgrade.Components()...)
		nearest := topology.Nearest(component, each.Once(components))
		return nil, fmt.Errorf("relapse neither tests nor upgrades a component %q%s", component, nearest)
	}
	return trials, nil
}

func (t trial) at(version string) (framework.Scenario, error) {
	versions := map[string]string{t.varied: version}
	if t.old != "" {
		versions[t.old] = t.from
	}
	return t.scenario.Unclassified(versions)
}

func (t trial) versions() []string {
	if t.old != "" {
		return []string{t.to}
	}
	return []string{t.from, t.to}
}

func (t trial) seen(i *Incident, version string) *Seen {
	if version == t.from {
		return &i.From
	}
	return &i.To
}

func (t trial) String() string {
	if t.old != "" {
		return fmt.Sprintf("%s with the upgrade itself", t.scenario.Incident.Name)
	}
	return fmt.Sprintf("%s with %s and with %s", t.scenario.Incident.Name, t.from, t.to)
}

const notRun = "it has not run yet"

func (t trial) incident() (Incident, error) {
	u, err := t.at(t.to)
	if err != nil {
		return Incident{}, err
	}
	words := []string{"relapse", "run", t.scenario.Incident.Name}
	if t.old != "" {
		words = append(words, "--with", t.old+"="+t.from)
	}
	words = append(words, "--with", t.varied+"="+t.to)
	if prefix, moved := t.scenario.MovedInto(); moved {
		words = append(words, "--subnets", prefix.String())
	}
	if t.scenario.Topology.Dual {
		words = append(words, "--family", framework.Dual)
	}
	pending := Seen{Outcome: bisect.Skipped, Why: notRun}
	i := Incident{
		Name: t.scenario.Incident.Name, Title: t.scenario.Incident.Title, Form: string(u.Variants[0].Form), OfUpgrade: t.old != "",
		From: pending, To: pending, Remedies: t.scenario.Incident.Remedies, Issue: t.scenario.Incident.Issue,
		Command: shellescape.QuoteCommand(words),
	}
	if i.OfUpgrade {
		i.From = Seen{}
	}
	return i, nil
}

// ask notes the incidents whose scripts run a slice of the component although a version is built whole.
func (r *Runner) ask(c *images.Catalogue) error {
	for _, version := range []string{r.From, r.To} {
		for n, t := range r.trials {
			i := &r.inputs.Incidents[n]
			_, err := c.Find(images.Want{Component: r.Component, Version: version, Form: images.Form(i.Form)})
			built, ok := errors.AsType[*images.FormError](err)
			switch {
			case err == nil, errors.As(err, new(*images.UnknownVersionError)): // image reports it
			case !ok:
				return err
			case built.Built == images.Whole:
				i.NotAsked, i.AnsweredBy = (&suite.FormError{Scenario: t.scenario.Incident.Name, FormError: built}).Error(), t.scenario.AnsweredBy
				i.From, i.To = Seen{}, Seen{}
			}
		}
	}
	return nil
}

// imageOf is an image of a trial's component. The error is an *images.UnknownVersionError if no recipe builds it.
func (t trial) imageOf(c *images.Catalogue, version string) (string, error) {
	name := t.varied
	if t.old != "" && version == t.from {
		name = t.old
	}
	u, err := t.scenario.Unclassified(map[string]string{name: version})
	if err != nil {
		return "", err
	}
	return firstKnown(c, suite.ImagesOf(u, false, u.Variants...), version)
}

// firstKnown is the first of some images with a version, if any. The error says that the catalogue does not know all
// images with the version.
func firstKnown(c *images.Catalogue, refs []string, version string) (string, error) {
	refs = slices.DeleteFunc(slices.Clone(refs), func(ref string) bool {
		_, tag, _ := strings.Cut(ref, ":")
		return strings.TrimPrefix(tag, "v") != version
	})
	if len(refs) == 0 {
		return "", nil
	}
	return refs[0], c.Know(refs...)
}

// image is an image by which the module proxy can be asked for a version: an image of a trial, an image of the upgrade,
// or else the slice that the keys of a version are read from.
func (r *Runner) image(c *images.Catalogue, version string) (string, error) {
	var first error
	for n, t := range r.trials {
		if r.inputs.Incidents[n].NotAsked != "" {
			continue
		}
		ref, err := t.imageOf(c, version)
		if err == nil && ref != "" {
			return ref, nil
		}
		first = cmp.Or(first, err)
	}
	if r.upgradable {
		ref, err := firstKnown(c, r.declared.Images(version), version)
		if err == nil && ref != "" {
			return ref, nil
		}
		first = cmp.Or(first, err)
	}
	if _, there := ConfigMapOf(r.Component); there {
		if ref := cilium.Rules(version); c.Know(ref) == nil {
			return ref, nil
		}
	}
	return "", first
}

// leaveOut removes trials for which no recipe builds either version, if the upgrade can be measured.
func (r *Runner) leaveOut(c *images.Catalogue) {
	if !r.upgradable {
		return
	}
	for n := len(r.trials) - 1; n >= 0; n-- {
		t := r.trials[n]
		if r.inputs.Incidents[n].NotAsked != "" {
			continue
		}
		var unknown *images.UnknownVersionError
		_, from := t.imageOf(c, r.From)
		_, to := t.imageOf(c, r.To)
		if !errors.As(from, &unknown) || !errors.As(to, &unknown) {
			continue
		}
		r.inputs.LeftOut = append(r.inputs.LeftOut, fmt.Sprintf("%s does not run with %s and %s: its lab needs %s, of which there are %s",
			t.scenario.Incident.Name, r.From, r.To, unknown.Name, strings.Join(unknown.Known, ", ")))
		r.trials, r.inputs.Incidents = slices.Delete(r.trials, n, n+1), slices.Delete(r.inputs.Incidents, n, n+1)
	}
}
