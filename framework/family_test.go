package framework_test

import (
	"net/netip"
	"testing"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/probe"
	"github.com/relapse-dev/relapse/topology/must"
)

// On a dual lab each probe and each finding about a prefix has an IPv6 counterpart, and variants that
// speak IPv4 alone do not run.
func TestWithFamily(t *testing.T) {
	a, b := framework.PodOn("a"), framework.PodOn("b")
	script := func() framework.Script {
		lost := framework.Finding{Object: detect.Prefix(netip.MustParsePrefix("10.66.128.1/32"))}
		return framework.Script{
			Probes:   []probe.Probe{a.To(b), {Name: "names", From: "a", To: "b", Protocol: probe.DNS}},
			Impacted: []probe.Probe{a.To(b)}, Expected: []framework.Finding{lost, {Object: detect.Named("deploy/x")}},
			Precursors: []framework.Precursor{{Expected: []framework.Finding{lost}}},
		}
	}
	s := framework.Scenario{
		Variants:   []framework.Variant{{Name: "both", Script: script}, {Name: "old", Script: script, OnlyIPv4: "its BGP has no IPv6"}},
		At:         func(map[string]string) framework.Variant { return framework.Variant{Script: script} },
		Parameters: []framework.Parameter{framework.Family}, With: framework.WithFamily,
	}
	dual := must.Get(s.Set(map[string]string{"family": "dual"}))(t)
	for _, once := range []framework.Scenario{dual, must.Get(dual.Set(map[string]string{"family": "dual"}))(t)} {
		for _, v := range append(once.Variants, once.At(nil)) {
			var names, objects []string
			dual := v.Script()
			for _, p := range append(dual.Probes, dual.Impacted...) {
				names = append(names, p.Name)
			}
			for _, f := range append(dual.Expected, dual.Precursors[0].Expected...) {
				objects = append(objects, f.Object.String())
			}
			must.Equal(t, "probes", []string{"a->b", "a->b/v6", "names", "a->b", "a->b/v6"}, names)
			const v6 = "fd5c:3f1e:a2d7::a42:8001/128"
			must.Equal(t, "findings", []string{"10.66.128.1/32", v6, "deploy/x", "10.66.128.1/32", v6}, objects)
		}
	}
	_, why := dual.Variants[1].Runnable()
	must.Equal(t, "the old one runs", "only with --family ipv4: its BGP has no IPv6", why)
	if len(dual.Runnable()) != 1 || !dual.Topology.Dual || len(s.Runnable()) != 2 || s.Topology.Dual {
		t.Errorf("%+v of %+v", dual.Runnable(), s.Topology)
	}
	if len(must.Get(s.Set(map[string]string{"family": "ipv4"}))(t).Variants[0].Script().Probes) != 2 {
		t.Error("a lab of IPv4 has other probes")
	}
	must.Fail(t, must.Err(s.Set(map[string]string{"family": "both"})), `family "both": expected ipv4 or dual`)
}
