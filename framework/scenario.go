package framework

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Role is what a variant must show.
type Role string

// Roles of a variant.
const (
	Affected   Role = "affected"   // must show the symptom
	Fixed      Role = "fixed"      // must not, under the same fault
	Workaround Role = "workaround" // must not, with the affected version
	// Unclassified is a version without an expectation: its verdict says what happened.
	// Package verdict removes Latent, Precursors, Aftermath and Remedies from its script.
	Unclassified Role = "unclassified"
)

// Form is how much of the vendor's program runs.
type Form string

// Forms of a component.
const (
	Whole Form = "whole" // the vendor's own program
	Slice Form = "slice" // a small main around the vendor's own packages
)

// Scenario reproduces one incident on a lab.
type Scenario struct {
	Incident Incident
	Topology topology.Topology
	// Moved are the networks of the topology that are not on their documented subnets
	// (Within); none: all are.
	Moved    topology.Renumbering
	Variants []Variant
	// Labels select its variants. LabelsOf adds labels that follow from the scenario.
	Labels []Label
	// Owner is informed when a nightly verdict changes.
	Owner Owner
	// Slow excludes the scenario from make test: it runs at night. SlowLabel selects it.
	Slow   bool
	Budget Budget
	// Parameters can be set for a run (Set). With returns a scenario, whose networks may have
	// moved, with the given values, by name, and the defaults of the others. Its error is one
	// sentence about a value that is invalid, or with which a run would prove nothing. Nil: no
	// parameters.
	Parameters []Parameter
	With       func(s Scenario, values map[string]string) (Scenario, error)
	// Tested are the components whose version can be chosen. At makes a variant for
	// chosen versions, which it gets by the names of Tested. The variant's role is
	// ignored (see Unclassified).
	Tested []Tested
	At     func(versions map[string]string) Variant
	// AnsweredBy is the path of the component's upgrade (package upgrade) that tells, without
	// the script, whether an upgrade introduces the incident; empty if none does.
	AnsweredBy string
	// NeedsValue is a value of the vendor's chart, such as "bgpControlPlane.enabled". The incident
	// cannot happen, and an upgrade is not qualified by it, unless the value is true. Empty: it
	// can happen with all values.
	NeedsValue string
	// Foreign is set if the scenario can run on a lab that somebody else has brought up: all that
	// it changes there is known to come back. Otherwise OnlyOwnLab says why it cannot, as a clause.
	Foreign    bool
	OnlyOwnLab string
	// NewLabs is set if each version needs a new lab, because state that one leaves on
	// the nodes changes the result of the next.
	NewLabs bool
	// SecondLab is a private prefix for the networks of a second lab, so that variants can run
	// in two labs at once. It overlaps no network of any scenario. Invalid: there is no second lab.
	SecondLab netip.Prefix
	// MinMemoryGiB is the memory that the scenario needs. A machine with less runs Small:
	// the same variants, steps and facts on fewer nodes. Zero: no Small.
	MinMemoryGiB int
	Small        *Scenario
}

// Owner is a GitHub user or team, as in "@relapse-dev/network".
type Owner string

// Maintainers own scenarios without an owner.
const Maintainers Owner = "@relapse-dev"

// Budget is how long a scenario may take on two CPUs, with its images built. Zero: no
// budget. A scenario without budgets is not measured.
type Budget struct {
	Whole  time.Duration // all variants, on labs of their own
	Lab    time.Duration // until the lab is up
	Detect time.Duration // from the first lost probe to the first finding after it
}

// ForMemory is the scenario for a machine with this much memory, in GiB.
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
	// Name is the component's name in its images. Two versions of one component have a
	// suffix: "cilium", or "cilium.from" and "cilium.to".
	Name string `json:"name"`
	// Default is the version if none is chosen.
	Default string `json:"default"`
	// Since is the oldest version that the script knows; empty: all that recipes build.
	Since string `json:"since,omitempty"`
	// Varied is set if the component's name without suffix means this version. Of two
	// versions it is the new one.
	Varied bool `json:"varied,omitempty"`
}

// VersionsOf returns the names that a component has in Tested: the name of the version that varies, and the
// name of the version before an upgrade. Each is empty if Tested has no such version.
func VersionsOf(component string, all []Tested) (varied, old string) {
	for _, t := range all {
		switch {
		case t.Component() != component:
		case t.Varied:
			varied = t.Name
		default:
			old = t.Name
		}
	}
	return varied, old
}

// Component is the name without suffix.
func (t Tested) Component() string {
	component, _, _ := strings.Cut(t.Name, ".")
	return component
}

// Find returns the element of Tested with this name, or the varied one of the component
// with this name.
func (s Scenario) Find(name string) (Tested, bool) {
	return each.First(s.Tested, func(t Tested) bool { return t.Name == name || t.Varied && t.Component() == name })
}

// Unclassified is the scenario with a single variant, which runs the incident's script on
// the chosen versions, by the names that Find accepts. The error is one sentence about an
// invalid name or version.
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
	s.Variants = append(slices.Clone(s.Variants), v) // TopologyFor keeps nodes that no variant has
	s.Topology = s.TopologyFor([]Variant{v})
	s.Variants = []Variant{v}
	s.Incident.Facts = nil // they refer to the other variants
	s.MinMemoryGiB, s.Small = 0, nil
	return s, nil
}

// Parameter is a value of a scenario that can be set for a run.
type Parameter struct {
	Name, Default string
	About         string
}

// Variant is one version or configuration of the component under test.
type Variant struct {
	Name string
	Role Role
	// Expect is what an Unclassified variant must come to, if somebody has said that.
	Expect Verdict
	// OnlyIPv4 is the reason why the variant cannot run on a lab of two families (WithFamily), as a
	// clause; empty: it can. dual is set if the lab is one.
	OnlyIPv4 string
	dual     bool
	// Nodes are used by this variant alone. Variants with their own nodes run in parallel on one
	// lab, and their faults are injected at the same moment. They must not disturb each other on
	// the rest of the lab. Either all variants of a scenario have nodes or none has.
	Nodes []string
	// Components are the versions under test, by name.
	Components map[string]string
	Form       Form
	// Labels are in addition to the scenario's.
	Labels []Label
	// OnlyOwnLab is the reason why this variant of a scenario that is Foreign cannot run on
	// such a lab, as a clause; empty: it can.
	OnlyOwnLab string
	// Refused is set if the expected verdict is Refused.
	Refused bool
	// Images are served to the nodes by the lab's registry.
	Images []string
	// Script makes the variant's script. Each run calls it, so that runs share no state.
	Script func() Script
}

// Runnable reports whether the variant can run on the lab. If it cannot, why says the reason.
func (v Variant) Runnable() (runnable bool, why string) {
	if v.dual && v.OnlyIPv4 != "" {
		return false, "only with --family ipv4: " + v.OnlyIPv4
	}
	return true, ""
}

// Runnable returns the variants that can run, as Variant.Runnable reports.
func (s Scenario) Runnable() []Variant {
	return slices.DeleteFunc(slices.Clone(s.Variants), func(v Variant) bool {
		runnable, _ := v.Runnable()
		return !runnable
	})
}

// Expected is the verdict that a variant must get; empty if there is no expectation.
func (v Variant) Expected() Verdict {
	switch {
	case v.Role == Unclassified:
		return v.Expect
	case v.Role == Affected:
		return Reproduced
	case v.Refused:
		return Refused
	}
	return Prevented
}

// Script is the incident, part by part. Package engine runs the parts, and package verdict
// judges the result.
type Script struct {
	// Install installs the components and the probes' endpoints, and removes what an earlier
	// variant or run has installed. It returns when they work.
	Install Action
	// Endpoints of the probes exist when Install returns, and after each remedy that replaces them.
	Endpoints []Endpoint
	// Probes run between the endpoints from the baseline on.
	Probes []probe.Probe
	// Detectors get each snapshot from the baseline on. Snapshots contain what the
	// detectors and the checks read.
	Detectors []detect.Detector
	// PollEvery is the time from one snapshot to the next; zero means 200 ms.
	PollEvery time.Duration
	// Latent are the findings of the baseline. The detectors must report each of them
	// before the fault, and no others.
	Latent   []Finding
	Baseline []Check
	// Precursors are injected before Fault.
	Precursors []Precursor
	Fault      Fault
	// Trials is set if the incident is probabilistic.
	Trials *Trials
	// Gone are the endpoints that the fault removes. Their probes are stopped before it.
	Gone []Endpoint
	// Impacted are the probes that lose packets in the incident.
	Impacted []probe.Probe
	// MinOutage is how long a probe must get no answer to count as losing packets, without
	// the time in which it sent nothing (probe.Timeline.FirstOutage). Zero: one lost packet
	// is enough. Guests without hardware support lose single packets on a busy machine.
	// Other probes, and probes of Impacted without such an outage, may then lose a share of
	// their packets (package verdict); with zero they may lose none.
	MinOutage time.Duration
	// Partial is set if the probes of Impacted lose only a share of their packets, such as
	// the flows that routers send to the wrong one of two next hops. A remedy that is asserted
	// not to help may then let packets through: each probe must lose some in the second half
	// of the time for which it is watched. Without it, none may arrive.
	Partial bool
	// Lull is the longest time without loss while the incident goes on, for one that costs packets in bursts.
	// Probes have recovered once they lose none for as long. Zero: the incident has no such times.
	Lull time.Duration
	// SymptomWithin bounds the wait for the symptom, from the fault on; zero means Observe.
	SymptomWithin time.Duration
	// Observe is how long traffic and detectors are watched from the fault on, in every
	// variant. A variant in which no probe loses packets in that time is unaffected.
	Observe   time.Duration
	Aftermath []Check
	// Expected are findings that the detectors must report after the fault.
	Expected []Finding
	// Transient are active findings that may come and go after the fault. An active
	// finding in neither list is an error.
	Transient []Finding
	// ExpectedWithin bounds the wait for Expected after the symptom; zero means five seconds.
	ExpectedWithin time.Duration
	// Refuses returns the component's own message if it refuses to start, and nothing if it starts. It is called
	// after the fault if no probe lost packets: a component that refuses harms no traffic and stops the upgrade.
	// The error says that this is unknown: the component ended, or has not started yet, for a reason that need
	// not be its version's. Nil if the component cannot refuse.
	Refuses func(ctx context.Context, r *Run) (why string, err error)
	// Remedies are tried one by one, each from the broken state.
	Remedies []Remedy
}

// Precursor is a harmless precursor of the incident: a fault that the detectors must
// report and with which no probe may lose packets.
type Precursor struct {
	// ID is unique among the precursors of the script, in the form of Check.ID.
	ID    string
	Name  string
	Fault Fault
	// Expected are the findings that the detectors must report. Transient are active
	// findings that may come and go. No others may be active.
	Expected, Transient []Finding
	// Aftermath are the checks after the precursor was watched.
	Aftermath []Check
	// Within bounds the wait for Expected after the injection; zero means five seconds.
	Within time.Duration
	// Undone is set if the precursor is undone before the next step. The detectors must
	// then have no active finding again.
	Undone bool
}

// Remedy is a documented remedy, or one that is documented not to help.
type Remedy struct {
	// ID is unique among the remedies of the script, in the form of Check.ID.
	ID   string
	Name string
	// Helps is set if it must help. Otherwise it is asserted not to help.
	Helps bool
	Apply Action
	// Bound is how long recovery may take from the start of Apply.
	Bound time.Duration
	// Undo restores the broken state, for the next remedy. Nil for the last one.
	Undo Action
	// ReplacesEndpoints is set if the remedy replaces the pods of the probes.
	ReplacesEndpoints bool
	// Watch is how long the symptom is watched after a remedy that does not help; zero means 15 s.
	Watch time.Duration
}

// Checks returns all checks of the script, in the order in which they run.
func (s Script) Checks() []Check {
	all := slices.Clone(s.Baseline)
	for _, f := range s.Precursors {
		all = append(all, f.Aftermath...)
	}
	return append(all, s.Aftermath...)
}

// Reads returns the sources that the script's detectors and checks read, whether
// detectors are switched off or not.
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
