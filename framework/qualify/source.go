package qualify

import (
	"fmt"
	"strings"

	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/topology/each"
)

type sources struct {
	// resting and to are the owners of the addresses at rest and after the upgrade.
	resting, to           string
	fails, unknown, warns []string
}

// sourcesOf judges the addresses from which packets of a path arrived; false if the path does not measure addresses.
// A peer knows the pods by their addresses (its firewall, its grants), so any new address is a change. As with loss, a
// few packets may have another address during a rollout, and no packet after it.
func sourcesOf(m upgrade.Measures, name string, t Thresholds) (sources, bool) {
	resting, _ := find(&m.Resting, name)
	all := sources{resting: whose(resting.Sources)}
	about := len(resting.Sources) > 0
	for _, s := range stages {
		phase := s.phaseOf(m)
		p, there := find(phase, name)
		if !there || len(p.Sources) == 0 {
			continue // the row of the path's loss says why
		}
		about = true
		if s.afterChange && !s.back {
			all.to = whose(p.Sources)
		}
		packets := 0
		var how []string
		for _, now := range p.Sources {
			var before []string
			same := false
			for _, then := range resting.Sources {
				if then.Probe == now.Probe {
					before = append(before, addressOf(then))
					same = same || then.Address == now.Address
				}
			}
			if same || len(before) == 0 {
				continue
			}
			packets += now.Packets
			how = append(how, fmt.Sprintf("%s from %s, and at rest from %s", now.Probe, addressOf(now), strings.Join(before, " and ")))
		}
		if packets == 0 {
			continue
		}
		says := fmt.Sprintf("%s %d of %d packets arrived from another address than at rest: %s",
			s.name, packets, p.Answered+p.Lost, strings.Join(how, "; "))
		if s.afterChange || float64(packets) > t.MaxLost*float64(p.Due) {
			all.fails = append(all.fails, says)
		} else {
			all.warns = append(all.warns, says)
		}
	}
	if about && len(resting.Sources) == 0 {
		all.unknown = append(all.unknown, "from which addresses packets arrive at rest is not known")
	}
	return all, about
}

func addressOf(s upgrade.Source) string {
	if s.Of == "" {
		return s.Address.String()
	}
	return fmt.Sprintf("%s (the %s's)", s.Address, s.Of)
}

func whose(all []upgrade.Source) string {
	return strings.Join(each.Once(each.Of(all, func(s upgrade.Source) string {
		if s.Of != "" {
			return s.Of + "s' addresses"
		}
		return s.Address.String()
	})), " and ")
}

// answered is the row of an incident whose script does not run, if a path of the upgrade answers its question: does the
// address change from which pods' packets arrive? False if the path was not measured.
func (i Incident) answered(inputs Inputs, t Thresholds) (Row, bool) {
	m := inputs.Upgrade.Measures
	if i.AnsweredBy == "" || m == nil {
		return Row{}, false
	}
	s, about := sourcesOf(*m, i.AnsweredBy, t)
	if !about {
		return Row{}, false
	}
	r := Row{Part: PartIncident, Name: i.Name, From: s.resting, To: s.to, State: Fine, Decides: true}
	by := fmt.Sprintf("by the upgrade's path %q (%s)", i.AnsweredBy, i.NotAsked)
	switch {
	case len(s.fails) > 0:
		r.State, r.Remedy, r.Issue = Fails, joined(i.Remedies), i.Issue
		r.Says = fmt.Sprintf("%s (%s) is introduced, %s: %s", i.Name, i.Title, by, strings.Join(s.fails, "; "))
	case len(s.unknown) > 0 || s.to == "":
		r.State = NotJudged
		r.Says = fmt.Sprintf("%s (%s) is not judged, %s: from which addresses packets arrive is not known", i.Name, i.Title, by)
	default:
		r.Says = fmt.Sprintf("%s (%s) is not introduced, %s: packets arrive from %s with %s, and with %s",
			i.Name, i.Title, by, s.resting, inputs.From, inputs.To)
	}
	return r, true
}
