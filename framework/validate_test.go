package framework

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/framework/snapshot"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/each"
	"github.com/relapse-dev/relapse/topology/must"
)

// silent is a detector that finds nothing.
type silent struct{}

func (silent) Name() string                                               { return "silent" }
func (silent) Reads() []snapshot.Source                                   { return nil }
func (silent) Detect([]snapshot.Snapshot, *detect.Index) []detect.Finding { return nil }

// pair is a valid scenario, but for what change does to the script of its affected variant, old.
func pair(change func(*Script)) Scenario {
	link := func(address string) []topology.Link {
		return []topology.Link{{Network: "nodes", Address: netip.MustParseAddr(address)}}
	}
	nothing := func(context.Context, *Run) error { return nil }
	script := func() Script {
		a, b := PodOn("a"), PodOn("b")
		return Script{
			Install: nothing, Endpoints: []Endpoint{a, b}, Probes: a.Both(b), Detectors: []detect.Detector{silent{}},
			Fault: Fault{Inject: func(context.Context, *Run) error { return nil }}, Impacted: []probe.Probe{a.To(b)}, Observe: time.Second,
			Expected: []Finding{{Detector: "silent", Kind: "lost", State: detect.Active, Object: detect.Named("a")}},
			Remedies: []Remedy{
				{ID: "route", Name: "static route", Helps: true, Bound: time.Second, Apply: nothing, Undo: nothing},
				{ID: "wait", Name: "wait", Apply: nothing},
			},
		}
	}
	return Scenario{
		Incident: Incident{Name: "pair"},
		Topology: topology.Topology{
			Name:     "pair",
			Networks: []topology.Network{{Name: "nodes", Subnet: netip.MustParsePrefix("10.30.4.0/24")}},
			Clusters: []topology.Cluster{{
				Name: "k8s", ASN: 64513, PodCIDR: netip.MustParsePrefix("10.30.64.0/20"), NodeMask: 24,
				ServiceCIDR: netip.MustParsePrefix("10.96.0.0/16"),
				Nodes: []topology.Node{
					{Name: "a", Role: topology.ControlPlane, Links: link("10.30.4.11"), Via: []string{"tor"}},
					{Name: "b", Role: topology.Worker, Links: link("10.30.4.12"), Via: []string{"tor"}},
				},
			}},
			Routers: []topology.Router{{
				Name: "tor", ASN: 64524, ID: netip.MustParseAddr("10.30.4.1"), Links: link("10.30.4.254"),
				Peers: []topology.Peers{{Network: "nodes", ASN: 64513}},
			}},
		},
		Variants: []Variant{
			{Name: "old", Role: Affected, Script: func() Script { s := script(); change(&s); return s }},
			{Name: "new", Role: Fixed, Script: script},
		},
	}
}

func TestValidate(t *testing.T) {
	must.NoError(t, pair(func(*Script) {}).Validate())
	for _, test := range []struct {
		name   string
		change func(*Script)
		says   []string
	}{
		{"a misspelt end", func(s *Script) { s.Probes = append(s.Probes, probe.Probe{From: "a", To: "bb"}) },
			[]string{`variant "old": probe "a->bb": there is no endpoint "bb"; nearest is "b"`}},
		{
			"a probe in Impacted that does not exist", func(s *Script) { s.Impacted = []probe.Probe{{From: "a", To: "b", Protocol: probe.TCP}} },
			[]string{`variant "old": impacted: there is no probe "a->b/tcp"`},
		},
		{"an end in Gone that does not exist", func(s *Script) { s.Gone = []Endpoint{PodOn("c")} },
			[]string{`variant "old": gone: there is no endpoint "c"`}},
		{
			"ends that are nowhere", func(s *Script) {
				s.Endpoints = append(s.Endpoints, PodOn("c"), Endpoint{Name: "d", Host: "d"}, Endpoint{Name: "e"}, PodOn("a"))
			},
			[]string{
				`endpoint "c": its pod must run on "c", which is no node`, `endpoint "d": there is no host "d"`,
				`endpoint "e": it is neither a pod nor a host nor a server`, `endpoint "a": the name is empty or taken`,
			},
		},
		{
			"a probe from what only answers", func(s *Script) {
				server := Server("db", func(*Run) netip.AddrPort { return netip.AddrPort{} })
				s.Endpoints, s.Probes = append(s.Endpoints, server), append(s.Probes, server.To(s.Endpoints[0]))
			},
			[]string{`endpoint "db" only answers: it has no agent to send from`},
		},
		{
			"remedies without a bound, without an undo, and of one name", func(s *Script) {
				s.Remedies[0].Bound = 0
				s.Remedies = append(s.Remedies, Remedy{ID: "wait", Name: "wait"})
			},
			[]string{`remedy "static route": it must help, and has no bound`, `remedy "wait": the name is empty or taken`, `remedy "wait": identifier "wait" is taken`, `remedy "wait": nothing is applied`},
		},
		{"no way back before the next remedy", func(s *Script) { s.Remedies[0].Undo = nil },
			[]string{`remedy "static route": another one comes after it, and it cannot be undone`}},
		{"a check that asserts nothing, with a percent sign in its name", func(s *Script) { s.Aftermath = []Check{{Name: "50% are lost"}} },
			[]string{`check after "50% are lost": nothing is asserted`}},
		{
			"identifiers that are none", func(s *Script) {
				s.Baseline = []Check{{Name: "none"}, {ID: "Two Words", Name: "two"}}
				s.Precursors = []Precursor{{ID: "-less", Name: "less", Fault: s.Fault, Aftermath: []Check{{ID: "less_", Name: "after"}}}}
			},
			[]string{
				`check before "none": identifier "": expected small letters`, `check before "two": identifier "Two Words": expected`,
				`harmless precursor "less": identifier "-less": expected`, `harmless precursor "less", check after "after": identifier "less_": expected`,
			},
		},
		{
			"findings that no detector comes to, or that are not whole", func(s *Script) {
				s.Latent = []Finding{{Detector: "silence", Kind: "lost", State: detect.Latent, Object: detect.Named("a")}}
				s.Transient = []Finding{{Detector: "silent", Kind: "lost", State: detect.Latent, Object: detect.Named("a")}}
				s.Precursors = []Precursor{{Name: "less", Fault: s.Fault, Expected: []Finding{{Detector: "silent", Kind: "lost", State: detect.Active}}}}
			},
			[]string{
				`latent: silence: latent lost a: there is no detector "silence"; nearest is "silent"`,
				`transient: silent: latent lost a: kind, object and state must be given, and the state be one of [active]`,
				`harmless precursor "less": silent: active lost: kind, object and state must be given`,
			},
		},
		{
			"nothing at all", func(s *Script) { *s = Script{} },
			[]string{"there are no probes", "there is no detector", "an Install and a Fault", "must name the probes", "must expect an active finding", "not enough to see"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := pair(test.change).Validate()
			for _, says := range test.says {
				must.Fail(t, err, says)
			}
		})
	}
}

func TestValidateWantsAPair(t *testing.T) {
	s := pair(func(*Script) {})
	s.Variants = s.Variants[:1]
	must.Fail(t, s.Validate(), "no variant is fixed")
}

func TestValidateNodesOfVariants(t *testing.T) {
	for _, test := range []struct {
		name     string
		old, new []string
		says     string // empty: they are valid
	}{
		{"each has one", []string{"a"}, []string{"b"}, ""},
		{"only one has any", []string{"a"}, nil, `variant "new": nodes: either all variants have nodes of their own or none has`},
		{"one node for both", []string{"b"}, []string{"b"}, `variant "new": nodes: "b" belongs to "old"`},
		{"a node that is none", []string{"a"}, []string{"bb"}, `variant "new": nodes: "bb" is no node; nearest is "b"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := pair(func(*Script) {})
			s.Variants[0].Nodes, s.Variants[1].Nodes = test.old, test.new
			err := s.Validate()
			if test.says == "" {
				must.NoError(t, err)
			} else {
				must.Fail(t, err, test.says)
			}
		})
	}
	s := pair(func(*Script) {})
	s.MinMemoryGiB = 8
	must.Fail(t, s.Validate(), "minimum memory and small belong together")
}

// Nodes of variants that do not run are not there; shared ones are.
func TestTopologyFor(t *testing.T) {
	s := pair(func(*Script) {})
	s.Variants[1].Nodes = []string{"b"}
	nodes := func(variants ...Variant) string {
		return each.Joined(s.TopologyFor(variants).Clusters[0].Nodes, " ", func(n topology.Node) string { return n.Name })
	}
	must.Equal(t, "without new there", "a", nodes(s.Variants[0]))
	must.Equal(t, "with both there", "a b", nodes(s.Variants...))
	if len(s.Topology.Clusters[0].Nodes) != 2 {
		t.Error("the scenario's own topology has changed")
	}
}

func TestOn(t *testing.T) {
	small := pair(func(*Script) {})
	large := pair(func(*Script) {})
	small.Incident.Name, large.MinMemoryGiB, large.Small = "small", 8, &small
	for memory, want := range map[int]string{4: "small", 8: "pair", 24: "pair"} {
		must.Equal(t, memory, want, large.ForMemory(memory).Incident.Name)
	}
	if small.ForMemory(0).Incident.Name != "small" {
		t.Error("a scenario that needs no room is another one")
	}
}

var up = Check{ID: "up", Name: "all links are up", Holds: func(context.Context, *Run) (bool, string, error) { return true, "", nil }}

func TestFacts(t *testing.T) {
	for _, test := range []struct {
		name string
		fact Fact
		says string // empty: nothing is wrong
	}{
		{"asserted", Fact{Says: "a is not reached", By: By("old", StepSymptom, StepRemedy("route"))}, ""},
		{"asserted by what must not come", Fact{Says: "a is reached", By: By("new", StepObserve)}, ""},
		{"not asserted, and why", Fact{Says: "it rained", Not: "the weather is not read"}, ""},
		{"not asserted", Fact{Says: "it rained"}, `fact "it rained": no step asserts it, and nothing says why`},
		{"no sentence", Fact{Says: "It rained.", Not: "so it did"}, "without a full stop"},
		{"a variant that is not there", Fact{Says: "it works", By: By("newest", StepObserve)}, `there is no variant "newest"`},
		{"a step that is not there", Fact{Says: "it helps", By: By("old", StepRemedy("rout"))}, `old has no step "remedy/rout"; nearest is "remedy/route"`},
		{"a check after for one before", Fact{Says: "it is up", By: By("old", StepAfter("up"))}, `old has no step "after/up"; there are`},
		{"a verdict of one that does not refuse", Fact{Says: "it refuses", By: By("new", StepVerdict)}, `new has no step "verdict"`},
		{"a symptom of the fixed version", Fact{Says: "a is not reached", By: By("new", StepSymptom)}, `new has no step "symptom"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := pair(func(s *Script) { s.Baseline = []Check{up} })
			s.Incident.Facts = []Fact{test.fact}
			err := s.Validate()
			if test.says == "" {
				must.NoError(t, err)
			} else {
				must.Fail(t, err, test.says)
			}
		})
	}
}
