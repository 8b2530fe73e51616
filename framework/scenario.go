package framework

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/fault"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/lab/registry"
)

// Role says what a variant is there to show.
type Role string

// Roles of a variant.
const (
	Affected   Role = "affected"   // must show the symptom
	Fixed      Role = "fixed"      // must not, under the same fault
	Workaround Role = "workaround" // must not, with the affected version
	// Unclassified is a version without an expectation: its verdict says what happened.
	// The engine leaves the expectations of its script out: Latent, Forms, Aftermath and
	// Remedies.
	Unclassified Role = "unclassified"
)

// Form says how much of the vendor's program runs.
type Form string

// Forms of a component.
const (
	Whole Form = "whole" // the vendor's own program
	Slice Form = "slice" // a main of ours around the vendor's own packages
)

// Scenario is the script that makes one incident happen on a lab.
type Scenario struct {
	Incident Incident
	Topology topology.Topology
	Variants []Variant
	// Labels are what its variants can be selected by, beside those that LabelsOf
	// derives from the scenario itself: what it is about.
	Labels []Label
	// Owner is informed when a verdict has changed over night.
	Owner Owner
	// Slow is set where make test leaves the scenario to the night. SlowLabel selects it.
	Slow   bool
	Budget Budget
	// Parameters may be set for a run, by With: it returns the scenario with
	// the values that it is given by name, and the defaults of the others. Its
	// error is one sentence about a value that makes no sense, or with which a
	// run would prove nothing. Nil where there are no parameters.
	Parameters []Parameter
	With       func(values map[string]string) (Scenario, error)
	// Tested are the components whose version can be chosen, and At the incident's
	// script on chosen ones: it gets a version for each of Tested, by its name, and
	// makes the variant, whose role is ignored (see Unclassified).
	Tested []Tested
	At     func(versions map[string]string) Variant
	// NewLabs is set where a version takes over what another one has left on the
	// nodes: to be compared, each needs a lab of its own.
	NewLabs bool
	// Room is the memory in GiB that a machine needs for the scenario as it is.
	// With less, Small runs in its place: the same variants, steps and facts, on
	// fewer nodes. Zero where there is no need of it.
	MinMemoryGiB int
	Small        *Scenario
}

// Owner is a GitHub user or team, as in "@relapse-dev/network".
type Owner string

// Maintainers own what has no owner of its own.
const Maintainers Owner = "@relapse-dev"

// Budget is how long a scenario may take on two CPUs, with its images built. What is
// zero has no budget, and a scenario without any is not measured.
type Budget struct {
	Whole    time.Duration // all variants, on a lab of their own
	Affected time.Duration // one affected variant, on a lab of its own
	Reuse    time.Duration // one variant, on a lab that is up
	Lab      time.Duration // until the lab is up
	Detect   time.Duration // from the first lost probe to the first finding after it
}

// On is the scenario for a machine with so much memory, in GiB.
func (s Scenario) ForMemory(memory int) Scenario {
	if memory < s.MinMemoryGiB {
		return *s.Small
	}
	return s
}

// TopologyFor is the topology without the nodes of variants that do not run.
func (s Scenario) TopologyFor(variants []Variant) topology.Topology {
	t := s.Topology
	t.Clusters = slices.Clone(t.Clusters)
	for i, c := range t.Clusters {
		t.Clusters[i].Nodes = slices.DeleteFunc(slices.Clone(c.Nodes), func(n topology.Node) bool {
			has := func(v Variant) bool { return slices.Contains(v.Nodes, n.Name) }
			return slices.ContainsFunc(s.Variants, has) && !slices.ContainsFunc(variants, has)
		})
	}
	return t
}

// Tested is a component whose version can be chosen for a run.
type Tested struct {
	// Name is the component's, as its images have it, with what tells two versions
	// of one apart: "cilium", or "cilium.from" and "cilium.to".
	Name string
	// Default is the version where none is chosen.
	Default string
	// Varied is set where the component's bare name means this one: of two versions
	// it is the new one.
	Varied bool
}

// Component is the name that images of the component have.
func (t Tested) Component() string {
	component, _, _ := strings.Cut(t.Name, ".")
	return component
}

// Find returns what of the scenario is tested under a name: one of Tested, or the
// component of one that is varied.
func (s Scenario) Find(name string) (Tested, bool) {
	for _, t := range s.Tested {
		if t.Name == name || t.Varied && t.Component() == name {
			return t, true
		}
	}
	return Tested{}, false
}

// Unclassified is the scenario with one variant in place of its own: the
// incident's script on these versions, by the names that Find knows. Its error is
// one sentence about a name or a version that makes no sense.
func (s Scenario) Unclassified(chosen map[string]string) (Scenario, error) {
	versions := map[string]string{}
	var names []string
	for _, t := range s.Tested {
		versions[t.Name] = t.Default
		names = append(names, t.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		t, there := s.Find(name)
		version := chosen[name]
		switch {
		case !there:
			return Scenario{}, fmt.Errorf("scenario %q tests no component %q%s", s.Incident.Name, name, topology.Nearest(name, names))
		case semver.Canonical("v"+version) != "v"+version:
			return Scenario{}, fmt.Errorf("%s: %q is no version: expected one such as %s", name, version, t.Default)
		case name != t.Name && chosen[t.Name] != "":
			return Scenario{}, fmt.Errorf("%s and %s are the same: choose one version", name, t.Name)
		}
		versions[t.Name] = version
	}
	v := s.At(versions)
	v.Role, v.Refused = Unclassified, false
	s.Variants = append(slices.Clone(s.Variants), v) // else its nodes would be taken for shared ones
	s.Topology = s.TopologyFor([]Variant{v})
	s.Variants = []Variant{v}
	s.Incident.Facts = nil // they are asserted of the other variants
	s.MinMemoryGiB, s.Small = 0, nil
	return s, nil
}

// Parameter is something of a scenario that may be set for a run.
type Parameter struct {
	Name, Default string
	// About says what it is, in a few words.
	About string
}

// ImagesOf names every image that must be built for some variants of the
// scenario, each once: the lab's own, and what its registry serves, but for
// what comes from upstreams.
func (s Scenario) ImagesOf(from registry.Upstreams, variants ...Variant) []string {
	refs := kindlab.ImagesOf(s.Topology)
	for _, v := range variants {
		refs = append(refs, v.Images...)
	}
	if len(from) > 0 {
		refs = slices.DeleteFunc(refs, func(ref string) bool { return !kindlab.Ours(ref) })
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}

// Variant is one version or configuration of the component under test.
type Variant struct {
	Name string
	Role Role
	// OnlyUpstream says why images of the variant cannot be built; empty: they
	// can. Such a variant runs only with the images that the vendor publishes.
	OnlyUpstream string
	// Nodes are those that the variant has for itself. Variants with nodes of their
	// own run side by side on one lab: what they do to the rest of it must not
	// disturb the others. The fault comes to all of them at the same moment. Either
	// all variants of a scenario have some or none has.
	Nodes []string
	// Components are the versions under test, by name.
	Components map[string]string
	Form       Form
	// Labels are further ones than the scenario's.
	Labels []Label
	// Refused is set where the component is to refuse to start instead of doing
	// harm: the expected verdict is then that.
	Refused bool
	// Images are served to the nodes by the lab's registry.
	Images []string
	// Script makes the variant's script. Each run calls it, so that no state of
	// one run is left in the next.
	Script func() Script
}

// Runnable tells whether the variant can run with images from these upstreams,
// or with none but built ones, and if not, why.
func (v Variant) Runnable(from registry.Upstreams) (runnable bool, why string) {
	if v.OnlyUpstream == "" || len(from) > 0 {
		return true, ""
	}
	return false, "only with --images=upstream: " + v.OnlyUpstream
}

// Runnable lists the scenario's variants that can run with images from these
// upstreams, or with none but built ones.
func (s Scenario) Runnable(from registry.Upstreams) []Variant {
	return slices.DeleteFunc(slices.Clone(s.Variants), func(v Variant) bool {
		runnable, _ := v.Runnable(from)
		return !runnable
	})
}

// Expected is the verdict that a variant must get; empty where there is no expectation.
func (v Variant) Expected() Verdict {
	switch {
	case v.Role == Unclassified:
		return ""
	case v.Role == Affected:
		return Reproduced
	case v.Refused:
		return Refused
	}
	return Prevented
}

// Script is the incident, part by part. The engine decides when each part
// runs and judges what follows.
type Script struct {
	// Install puts the components and the probes' ends into the lab, in place
	// of whatever an earlier variant or run has left there. It returns when
	// they work.
	Install func(ctx context.Context, r *Run) error
	// Ends are what the probes run between. They are there when Install
	// returns, and after each remedy that replaces them.
	Endpoints []Endpoint
	// Probes run between the ends from the baseline on.
	Probes []probe.Probe
	// Detectors get each snapshot from the baseline on. The snapshots hold
	// what the detectors and the checks read.
	Detectors []detect.Detector
	// LookEvery is the time from one snapshot to the next; zero means 200 ms.
	PollEvery time.Duration
	// Latent are the findings of the baseline: the incident waiting to happen.
	// The detectors must have come to each of them before the fault, and to no
	// other.
	Latent []Finding
	// Baseline holds before the fault.
	Baseline []Check
	// Forms are harmless precursors of the incident: faults with which no probe loses
	// packets, and which the detectors must report. They come before Fault.
	Precursors []Precursor
	// Fault starts the incident.
	Fault func(r *Run) fault.Fault
	// Race is set where the incident strikes by chance.
	Trials *Trials
	// Gone are the ends that the fault takes away. The probes from and to them
	// are stopped before it.
	Gone []Endpoint
	// Hurt are the probes that lose packets in the incident.
	Impacted []probe.Probe
	// HurtFor is how long a probe must have no answer at all to count as losing packets, not
	// counting the time in which it sent nothing (probe.Timeline.FirstOutage); zero: one
	// lost packet is enough. A node without hardware support for guests loses one now and
	// then when the machine is busy.
	MinOutage time.Duration
	// HurtWithin bounds the wait for the symptom from the fault on, where that takes
	// its time; zero means Observe.
	SymptomWithin time.Duration
	// Observe is how long traffic and detectors are watched from the fault on,
	// in every variant; what comes after the fault goes on meanwhile. A variant
	// in which no probe loses packets for so long is unaffected.
	Observe time.Duration
	// Aftermath holds after the fault.
	Aftermath []Check
	// Named are findings that the detectors must come to after the fault.
	Expected []Finding
	// Passing are active findings that may come and go after the fault. One that
	// is neither in here nor in Named is an error.
	Transient []Finding
	// NamedWithin bounds how long the detectors may take after the symptom; zero
	// means five seconds.
	ExpectedWithin time.Duration
	// Refuses says in the component's own words that it does not start with what
	// it is given; empty: it does start. It is asked after the fault, where no
	// probe lost packets: a component that refuses harms no traffic and stops the
	// upgrade. Nil where the component cannot refuse.
	Refuses func(ctx context.Context, r *Run) (why string, err error)
	// Remedies are tried one after the other, each from the broken state.
	Remedies []Remedy
}

// LesserForm is a harmless precursor: the incident is detectable, and no probe loses
// packets. Both are asserted.
type Precursor struct {
	// ID identifies the form among those of its script, as Check.ID does a check.
	ID    string
	Name  string
	Fault func(r *Run) fault.Fault
	// Named are the findings that the detectors must come to, and Passing active
	// ones that may come and go. No others may be active.
	Expected, Transient []Finding
	// Aftermath are facts that must hold when the form has been watched.
	Aftermath []Check
	// Within bounds how long the detectors may take after the injection; zero
	// means five seconds.
	Within time.Duration
	// TakenBack is set where the form is undone before what comes after it,
	// and the detectors must have no active finding again.
	Undone bool
}

// Remedy is a documented way out of the incident, or one that is documented
// not to help.
type Remedy struct {
	// ID identifies the remedy among those of its script, as Check.ID does a check.
	ID   string
	Name string
	// Helps is whether it must help. A remedy that does not is asserted not to.
	Helps bool
	Apply func(ctx context.Context, r *Run) error
	// Bound is how long recovery may take from the start of Apply.
	Bound time.Duration
	// Undo goes back to the broken state, for the next remedy. Nil where
	// nothing comes after.
	Undo func(ctx context.Context, r *Run) error
	// ReplacesEnds is set where the pods that the probes run between are replaced.
	ReplacesEndpoints bool
	// Watch is how long the symptom is watched after a remedy that does not help;
	// zero means 15 s.
	Watch time.Duration
}

// Checks lists the script's checks, in the order in which they are asked.
func (s Script) Checks() []Check {
	all := slices.Clone(s.Baseline)
	for _, f := range s.Precursors {
		all = append(all, f.Aftermath...)
	}
	return append(all, s.Aftermath...)
}

// Reads lists the sources that the script's detectors and checks read. A
// detector that is switched off counts: checks need what it would have read.
func (s Script) Reads() []snapshot.Source {
	var all []snapshot.Source
	for _, d := range s.Detectors {
		all = append(all, d.Reads()...)
	}
	for _, c := range s.Checks() {
		all = append(all, c.Reads...)
	}
	return all
}
