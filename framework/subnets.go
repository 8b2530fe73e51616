package framework

import (
	"fmt"
	"net/netip"

	"github.com/relapse-dev/relapse/topology"
)

// Within returns the scenario with the networks of its lab moved into a prefix (topology.Within).
// Parameters have their defaults: Set comes after. The error is one sentence about the prefix.
func (s Scenario) Within(prefix netip.Prefix) (Scenario, error) {
	moves, err := s.Topology.Within(prefix)
	return s.renumbered(moves), err
}

// SecondLabOf is the name of the second lab beside a lab of this name.
func SecondLabOf(lab string) string { return lab + "-2" }

// OnSecondLab returns the scenario on a second lab: with another name, its networks in the
// scenario's SecondLab, and the given values of its parameters. The error is why there is none,
// as one sentence.
func (s Scenario) OnSecondLab(values map[string]string) (Scenario, error) {
	switch {
	case !s.SecondLab.IsValid():
		return Scenario{}, fmt.Errorf("%s has no networks for a second lab", s.Incident.Name)
	case len(s.Moved) > 0:
		return Scenario{}, fmt.Errorf("the networks of %s have moved", s.Incident.Name)
	}
	second, err := s.Within(s.SecondLab)
	if err != nil {
		return Scenario{}, err
	}
	if own := s.Own(values); len(own) > 0 {
		if second, err = second.Set(own); err != nil {
			return Scenario{}, err
		}
	}
	second.Topology.Name = SecondLabOf(second.Topology.Name)
	if second.Small != nil { // a copy that Within has made
		second.Small.Topology.Name = SecondLabOf(second.Small.Topology.Name)
	}
	return second, nil
}

// Onto returns the scenario with the networks of its lab moved to the subnets that a stored
// run had, by name (topology.Onto). Parameters have their defaults: Set comes after.
func (s Scenario) Onto(subnets map[string]netip.Prefix) (Scenario, error) {
	moves, err := s.Topology.Onto(subnets)
	return s.renumbered(moves), err
}

func (s Scenario) renumbered(moves topology.Renumbering) Scenario {
	if len(moves) == 0 {
		return s
	}
	s.Incident = s.Incident.renumbered(moves)
	s.Topology = s.Topology.Renumber(moves)
	s.Moved = moves
	if s.Small != nil { // of the same networks
		s.Small = new(s.Small.renumbered(moves))
	}
	return s
}

// Own are the values of the scenario's own parameters, without other scenarios' values.
func (s Scenario) Own(values map[string]string) map[string]string {
	own := map[string]string{}
	for _, p := range s.Parameters {
		if value, given := values[p.Name]; given {
			own[p.Name] = value
		}
	}
	return own
}

// Set returns the scenario with the given values of its parameters, by name, and the defaults
// of the others. The error is one sentence about a value.
func (s Scenario) Set(values map[string]string) (Scenario, error) { return s.With(s, values) }

// MovedInto is the prefix for Within that moves the networks to where they are; false if none was moved.
func (s Scenario) MovedInto() (netip.Prefix, bool) {
	if len(s.Moved) == 0 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(s.Moved[0].To.Addr(), s.Topology.Block()).Masked(), true
}

// Subnets says where moved networks are, and which networks have stayed and why, a sentence each;
// none if no network was moved.
func (s Scenario) Subnets() []string {
	var all []string
	for _, m := range s.Moved {
		all = append(all, fmt.Sprintf("network %q of %s has the subnet %s, and not the documented %s", m.Network, s.Topology.Name, m.To, m.From))
	}
	for _, n := range s.Topology.Networks {
		if n.Fixed != "" && len(s.Moved) > 0 {
			all = append(all, fmt.Sprintf("network %q of %s keeps %s: %s", n.Name, s.Topology.Name, n.Subnet, n.Fixed))
		}
	}
	return all
}

// renumbered is the record with the lab's addresses as they are after a move. What was
// observed in production stays.
func (i Incident) renumbered(moves topology.Renumbering) Incident {
	i.Diagram, i.Reproduction = moves.Text(i.Diagram), moves.Text(i.Reproduction)
	facts := make([]Fact, len(i.Facts))
	for n, f := range i.Facts {
		f.Says, f.Not = moves.Text(f.Says), moves.Text(f.Not)
		facts[n] = f
	}
	i.Facts = facts
	return i
}
