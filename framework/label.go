package framework

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2/types"

	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
)

// Label is a word that selects variants.
type Label string

// Labels that several scenarios declare. A scenario may also declare its own.
const (
	BGP           Label = "bgp"
	BPF           Label = "bpf"
	Images        Label = "images"
	IPAM          Label = "ipam"
	Masquerade    Label = "masquerade"
	Probabilistic Label = "race" // the incident does not happen each time
	Services      Label = "services"
	Upgrade       Label = "upgrade"
)

// Labels that LabelsOf derives from a scenario. No scenario declares them.
const (
	GuestLabel Label = "guest" // variants with nodes that have a kernel of their own
	SlowLabel  Label = "slow"  // Scenario.Slow
)

var derived = []Label{GuestLabel, SlowLabel}

// labelForm is the form of a label: it needs no quotes in a selection.
var labelForm = regexp.MustCompile(`^[a-z0-9]+([.-][a-z0-9]+)*$`)

// LabelsOf are the labels of a variant, sorted and without duplicates: the labels that it and its
// scenario declare, the components of Tested, and GuestLabel and SlowLabel where they apply.
func (s Scenario) LabelsOf(v Variant) []string {
	labels := each.Of(slices.Concat(s.Labels, v.Labels), func(l Label) string { return string(l) })
	labels = append(labels, each.Of(s.Tested, Tested.Component)...)
	for _, c := range s.TopologyFor([]Variant{v}).Clusters {
		if slices.ContainsFunc(c.Nodes, func(n topology.Node) bool { return n.Kernel != "" }) {
			labels = append(labels, string(GuestLabel))
		}
	}
	if s.Slow {
		labels = append(labels, string(SlowLabel))
	}
	return each.Once(labels)
}

// Selection chooses variants by their labels.
type Selection struct {
	matches types.LabelFilter
	words   []string
}

const wordEnds = ",&|!()"

// ParseSelection reads an expression of labels: "cilium && !slow", "(bgp || services),
// guest", where a comma means "or". Its error is one sentence.
func ParseSelection(expression string) (Selection, error) {
	matches, err := types.ParseLabelFilter(expression)
	words := each.Of(strings.FieldsFunc(expression, func(r rune) bool { return strings.ContainsRune(wordEnds, r) }), strings.TrimSpace)
	words = each.Where(words, func(word string) bool { return word != "" })
	if word, found := each.First(words, func(word string) bool { return !labelForm.MatchString(word) }); found {
		return Selection{}, fmt.Errorf("%q is no label: expected an expression such as %q", word, "cilium && !slow")
	}
	if err != nil || len(words) == 0 {
		return Selection{}, fmt.Errorf("%q is no expression of labels: expected one such as %q", expression, "cilium && !slow")
	}
	return Selection{matches, words}, nil
}

// Words are the labels that the expression names.
func (s Selection) Words() []string { return s.words }

// Variants are the selected variants of a scenario.
func (s Selection) Variants(scenario Scenario) []Variant {
	return slices.DeleteFunc(slices.Clone(scenario.Variants), func(v Variant) bool { return !s.matches(scenario.LabelsOf(v)) })
}

func (p *problems) labels(s Scenario) {
	check := func(p *problems, labels []Label) {
		for _, l := range labels {
			switch {
			case !labelForm.MatchString(string(l)):
				p.add("label %q: want small letters and digits, with hyphens or dots between them", l)
			case slices.Contains(derived, l):
				p.add("label %q: it is derived from the scenario itself", l)
			}
		}
	}
	check(p, s.Labels)
	for _, v := range s.Variants {
		check(p.at("variant %q", v.Name), v.Labels)
	}
}
