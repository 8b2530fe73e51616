package framework

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology"
)

// Dual is the value of Family of a lab of both families.
const Dual = "dual"

// Family is the parameter of scenarios whose labs can have two address families (WithFamily).
var Family = Parameter{
	Name: "family", Default: string(topology.IPv4),
	About: "the address families of the lab: ipv4, or dual, where each probe and each finding of IPv4 has one of IPv6 beside it",
}

// WithFamily returns the scenario on a lab with the address families that the values choose. Variants that
// speak IPv4 alone do not run on a dual lab (Variant.OnlyIPv4).
func WithFamily(s Scenario, values map[string]string) (Scenario, error) {
	switch value := cmp.Or(values[Family.Name], Family.Default); value {
	case Family.Default:
		return s, nil
	case Dual:
	default:
		return Scenario{}, fmt.Errorf("%s %q: expected %s or %s", Family.Name, value, Family.Default, Dual)
	}
	if s.Topology.Dual { // a second lab's scenario is dual already
		return s, nil
	}
	s.Topology.Dual = true
	s.Variants = slices.Clone(s.Variants)
	for i, v := range s.Variants {
		s.Variants[i] = v.onDual()
	}
	if at := s.At; at != nil {
		s.At = func(versions map[string]string) Variant { return at(versions).onDual() }
	}
	return s, nil
}

func (v Variant) onDual() Variant {
	v.dual = true
	script := v.Script
	v.Script = func() Script { return script().onDual() }
	return v
}

// onDual adds the IPv6 counterpart of each probe and of each finding about a prefix.
func (s Script) onDual() Script {
	s.Probes, s.Impacted = withV6(s.Probes, probeV6), withV6(s.Impacted, probeV6)
	for _, findings := range []*[]Finding{&s.Latent, &s.Expected, &s.Transient} {
		*findings = withV6(*findings, findingV6)
	}
	s.Precursors = slices.Clone(s.Precursors)
	for i, p := range s.Precursors {
		s.Precursors[i].Expected, s.Precursors[i].Transient = withV6(p.Expected, findingV6), withV6(p.Transient, findingV6)
	}
	return s
}

// withV6 returns the elements of a list, each followed by its IPv6 counterpart, if it has one.
func withV6[T any](all []T, counterpart func(T) (T, bool)) []T {
	var both []T
	for _, one := range all {
		both = append(both, one)
		if v6, there := counterpart(one); there {
			both = append(both, v6)
		}
	}
	return both
}

// probeV6 is the IPv6 counterpart of an IPv4 probe. Name servers and databases are asked by IPv4 alone.
func probeV6(p probe.Probe) (probe.Probe, bool) {
	p = p.WithDefaults()
	p.V6 = true
	p.Name += probe.V6Suffix
	return p, p.Protocol != probe.DNS && p.Protocol != probe.MySQL
}

// ProbesV6 are the IPv6 counterparts of IPv4 probes.
func ProbesV6(all []probe.Probe) []probe.Probe {
	return slices.DeleteFunc(withV6(all, probeV6), func(p probe.Probe) bool { return !p.V6 })
}

func findingV6(f Finding) (Finding, bool) {
	prefix, ok := f.Object.Prefix()
	if ok {
		f.Object = detect.Prefix(topology.IPv6.Prefix(prefix))
	}
	return f, ok
}
