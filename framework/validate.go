package framework

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Validate returns all errors of a scenario that can be found without a lab, each with its place.
func (s Scenario) Validate() error {
	p := &problems{found: new([]error)}
	if s.Incident.Name == "" {
		p.add("the incident has no name")
	}
	if err := s.Topology.Validate(); err != nil {
		p.add("topology: %w", err)
	}
	p.pair(s)
	p.nodes(s)
	names := map[string]bool{}
	for _, v := range s.Variants {
		if names[v.Name] {
			p.add("variant %q: the name is taken", v.Name)
		}
		names[v.Name] = true
		p.at("variant %q", v.Name).variant(s.Topology, v)
	}
	p.facts(s)
	p.tested(s)
	p.labels(s)
	if err := errors.Join(*p.found...); err != nil {
		return fmt.Errorf("scenario %q: %w", s.Incident.Name, err)
	}
	if s.Small != nil {
		if err := s.Small.Validate(); err != nil {
			return fmt.Errorf("on a machine with less than %d GiB: %w", s.MinMemoryGiB, err)
		}
	}
	return nil
}

type problems struct {
	where string
	found *[]error
}

func (p *problems) add(format string, args ...any) {
	// Names in where may contain a percent sign.
	*p.found = append(*p.found, fmt.Errorf("%s%w", p.where, fmt.Errorf(format, args...)))
}

func (p *problems) at(format string, args ...any) *problems {
	return &problems{p.where + fmt.Sprintf(format, args...) + ": ", p.found}
}

// pair checks that there is an affected and a fixed variant: only their difference proves something.
func (p *problems) pair(s Scenario) {
	has := func(role Role) bool {
		return slices.ContainsFunc(s.Variants, func(v Variant) bool { return v.Role == role })
	}
	for _, role := range []Role{Affected, Fixed} {
		if !has(role) && !has(Unclassified) {
			p.add("no variant is %s: without both, affected and fixed, a scenario cannot tell them apart", role)
		}
	}
}

func (p *problems) tested(s Scenario) {
	if (len(s.Tested) > 0) != (s.At != nil) {
		p.add("tested and at belong together")
		return
	}
	varied := map[string]bool{}
	for _, t := range s.Tested {
		if t.Varied && varied[t.Component()] {
			p.add("tested %q: another one of this component is varied", t.Name)
		}
		varied[t.Component()] = varied[t.Component()] || t.Varied
	}
	for component, one := range varied {
		if !one {
			p.add("tested: no version of %q is varied", component)
		}
	}
	if s.At == nil || slices.ContainsFunc(s.Variants, func(v Variant) bool { return v.Role == Unclassified }) {
		return
	}
	u, err := s.Unclassified(nil)
	if err == nil {
		u.Tested, u.At = nil, nil
		err = u.Validate()
	}
	if err != nil {
		p.add("at the default versions: %w", err)
	}
}

// nodes checks the variants' own nodes, and that there is a small scenario for machines
// with too little memory.
func (p *problems) nodes(s Scenario) {
	if (s.MinMemoryGiB > 0) != (s.Small != nil) {
		p.add("minimum memory and small belong together")
	}
	whose := map[string]string{}
	for _, v := range s.Variants {
		p := p.at("variant %q", v.Name)
		if (len(v.Nodes) > 0) != (len(s.Variants[0].Nodes) > 0) {
			p.add("nodes: either all variants have nodes of their own or none has")
		}
		for _, n := range v.Nodes {
			if !isNode(s.Topology, n) {
				p.add("nodes: %q is no node%s", n, topology.Nearest(n, nodesOf(s.Topology)))
			}
			if whose[n] != "" {
				p.add("nodes: %q belongs to %q", n, whose[n])
			}
			whose[n] = v.Name
		}
	}
}

func (p *problems) variant(t topology.Topology, v Variant) {
	if !slices.Contains([]Role{Affected, Fixed, Workaround, Unclassified}, v.Role) {
		p.add("role %q: want %s, %s or %s", v.Role, Affected, Fixed, Workaround)
	}
	if v.Script == nil {
		p.add("there is no script")
		return
	}
	script := v.Script()
	ends := p.endpoints(t, script)
	probes := p.probes(script, ends)
	for _, e := range script.Gone {
		if _, found := ends[e.Name]; !found {
			p.add("gone: there is no endpoint %q%s", e.Name, topology.Nearest(e.Name, slices.Sorted(maps.Keys(ends))))
		}
	}
	for _, h := range script.Impacted {
		name := h.WithDefaults().Name
		if !slices.Contains(probes, name) {
			p.add("impacted: there is no probe %q%s", name, topology.Nearest(name, probes))
		}
	}
	affected := v.Role == Affected || v.Role == Unclassified // one without an expectation may be affected
	if affected && len(script.Impacted) == 0 {
		p.add("impacted: an affected variant must name the probes that lose packets")
	}
	if affected && !slices.ContainsFunc(script.Expected, func(f Finding) bool { return f.State == detect.Active }) {
		p.add("expected: an affected variant must expect an active finding")
	}
	if len(script.Detectors) == 0 {
		p.add("there is no detector")
	}
	if v.Refused && (v.Role == Affected || script.Refuses == nil) {
		p.add("refused: only an unaffected variant can refuse, and its script must have Refuses")
	}
	p.findings(script)
	if script.Install == nil || script.Fault.Inject == nil {
		p.add("there must be an Install and a Fault")
	}
	if script.Observe <= 0 {
		p.add("observe: %s is not enough to see the symptom", script.Observe)
	}
	p.steps(script)
}

func (p *problems) findings(s Script) {
	check := func(where string, findings []Finding, states ...detect.State) {
		for _, f := range findings {
			p := p.at("%s: %s", where, f)
			names := each.Of(s.Detectors, detect.Detector.Name)
			if !slices.Contains(names, f.Detector) {
				p.add("there is no detector %q%s", f.Detector, topology.Nearest(f.Detector, names))
			}
			if f.Kind == "" || (f.Object == "") != f.AnyObject || !slices.Contains(states, f.State) {
				p.add("kind, object and state must be given, and the state be one of %v", states)
			}
		}
	}
	check("latent", s.Latent, detect.Latent, detect.Hint)
	check("expected", s.Expected, detect.Latent, detect.Active)
	check("transient", s.Transient, detect.Active)
	for _, f := range s.Precursors {
		check(fmt.Sprintf("harmless precursor %q", f.Name), f.Expected, detect.Latent, detect.Active)
		check(fmt.Sprintf("harmless precursor %q, transient", f.Name), f.Transient, detect.Active)
	}
}

func (p *problems) endpoints(t topology.Topology, s Script) map[string]Endpoint {
	ends := map[string]Endpoint{}
	for _, e := range s.Endpoints {
		p := p.at("endpoint %q", e.Name)
		if _, twice := ends[e.Name]; twice || e.Name == "" {
			p.add("the name is empty or taken")
		}
		ends[e.Name] = e
		switch {
		case e.Pod != nil && !isNode(t, e.Pod.Node):
			p.add("its pod must run on %q, which is no node%s", e.Pod.Node, topology.Nearest(e.Pod.Node, nodesOf(t)))
		case e.Host != "" && !slices.ContainsFunc(t.Hosts, func(h topology.Host) bool { return h.Name == e.Host }):
			p.add("there is no host %q", e.Host)
		case e.Pod == nil && e.Host == "" && e.Address == nil:
			p.add("it is neither a pod nor a host nor a server")
		}
	}
	return ends
}

func (p *problems) probes(s Script, ends map[string]Endpoint) []string {
	var names []string
	for _, declared := range s.Probes {
		declared = declared.WithDefaults()
		if err := declared.Validate(); err != nil {
			p.add("%w", err)
		}
		p := p.at("probe %q", declared.Name)
		if slices.Contains(names, declared.Name) {
			p.add("the name is taken")
		}
		names = append(names, declared.Name)
		for _, name := range []string{declared.From, declared.To} {
			if _, found := ends[name]; !found {
				p.add("there is no endpoint %q%s", name, topology.Nearest(name, slices.Sorted(maps.Keys(ends))))
			}
		}
		if from := ends[declared.From]; from.Address != nil {
			p.add("endpoint %q only answers: it has no agent to send from", from.Name)
		}
	}
	if len(names) == 0 {
		p.add("there are no probes")
	}
	return names
}

// identifierForm is the form of Check.ID and the like.
var identifierForm = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

func (p *problems) steps(s Script) {
	names := map[[2]string]bool{}
	named := func(what, id, name string) *problems {
		p := p.at("%s %q", what, name)
		if name == "" || names[[2]string{what, name}] {
			p.add("the name is empty or taken")
		}
		switch {
		case !identifierForm.MatchString(id):
			p.add("identifier %q: expected small letters and digits, with hyphens between them", id)
		case names[[2]string{what + " identifier", id}]:
			p.add("identifier %q is taken", id)
		}
		names[[2]string{what, name}], names[[2]string{what + " identifier", id}] = true, true
		return p
	}
	check := func(where string, checks []Check) {
		for _, c := range checks {
			if p := named(where, c.ID, c.Name); c.Holds == nil {
				p.add("nothing is asserted: Holds is nil")
			}
		}
	}
	check("check before", s.Baseline)
	check("check after", s.Aftermath)
	for _, f := range s.Precursors {
		if p := named("harmless precursor", f.ID, f.Name); f.Fault.Inject == nil {
			p.add("it has no fault")
		}
		check(fmt.Sprintf("harmless precursor %q, check after", f.Name), f.Aftermath)
	}
	for i, r := range s.Remedies {
		p := named("remedy", r.ID, r.Name)
		if r.Apply == nil {
			p.add("nothing is applied: Apply is nil")
		}
		if r.Helps && r.Bound <= 0 {
			p.add("it must help, and has no bound")
		}
		if r.Undo != nil && i == len(s.Remedies)-1 {
			p.add("nothing comes after it, so that nothing shows whether its undo works")
		}
		if r.Helps && r.Undo == nil && i < len(s.Remedies)-1 {
			p.add("another one comes after it, and it cannot be undone")
		}
	}
}

func isNode(t topology.Topology, name string) bool { return slices.Contains(nodesOf(t), name) }

func nodesOf(t topology.Topology) []string {
	return each.Of(t.Nodes(), func(n topology.Node) string { return n.Name })
}
