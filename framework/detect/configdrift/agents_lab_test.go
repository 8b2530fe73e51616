//go:build lab

package configdrift

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/relapse-dev/relapse/framework/detect/configdrift/agents"
	"github.com/relapse-dev/relapse/images"
)

// TestAgainstAgents lets the agents themselves say what is in force, and
// compares that with what Compare says of the same ConfigMaps, for each pair of
// versions.
func TestAgainstAgents(t *testing.T) {
	catalogue, err := images.Open("../../..")
	if err != nil {
		t.Fatal(err)
	}
	built, err := agents.Build(t.Context(), catalogue, t.TempDir(), agents.Versions(catalogue))
	if err != nil {
		t.Fatal(err)
	}
	if len(built) < 6 {
		t.Fatalf("there are %d slices", len(built))
	}
	native := map[string]string{
		"ipam": "kubernetes", "enable-ipv4": "true", "enable-ipv6": "false", "tunnel": "disabled",
		"kube-proxy-replacement": "disabled", "identity-allocation-mode": "crd", "cluster-name": "default",
	}
	cases := map[string]map[string]string{
		"as in the incident":      {"masquerade": "true", "enable-bpf-masquerade": "true", "native-routing-cidr": "10.20.30.0/24"},
		"off by the old key":      {"masquerade": "false", "native-routing-cidr": "10.20.30.0/24"},
		"off by the new key":      {"enable-ipv4-masquerade": "false", "ipv4-native-routing-cidr": "10.20.30.0/24"},
		"both keys":               {"masquerade": "false", "enable-ipv4-masquerade": "false", "native-routing-cidr": "10.20.30.0/24"},
		"both native CIDRs":       {"native-routing-cidr": "10.20.30.0/24", "ipv4-native-routing-cidr": "10.20.30.0/24"},
		"an empty native CIDR":    {"native-routing-cidr": "", "ipv4-native-routing-cidr": "10.20.30.0/24"},
		"nothing said":            {},
		"an empty switch":         {"masquerade": "", "native-routing-cidr": "10.20.30.0/24"},
		"an empty new switch":     {"enable-ipv4-masquerade": "", "ipv4-native-routing-cidr": "10.20.30.0/24"},
		"a switch that is none":   {"masquerade": "nein", "native-routing-cidr": "10.20.30.0/24"},
		"a new switch, no switch": {"enable-ipv4-masquerade": "nein", "ipv4-native-routing-cidr": "10.20.30.0/24"},
		"a number that is none":   {"masquerade": "false", "mtu": "many"},
		"a time that is none":     {"masquerade": "false", "k8s-heartbeat-timeout": "soon"},
		"a key of nobody's":       {"masquerade": "false", "masquerades": "false"},
		"with a tunnel":           {"tunnel": "vxlan", "masquerade": "false"},
	}
	// The agents share nothing, and starting one takes a second of a CPU.
	var mu sync.Mutex
	answers := map[string]map[string]agents.Answer{} // by case and version
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(runtime.NumCPU())
	for name, more := range cases {
		config := maps.Clone(native)
		maps.Copy(config, more)
		cases[name], answers[name] = config, map[string]agents.Answer{}
		for _, a := range built {
			group.Go(func() error {
				answer, err := a.Effective(ctx, config)
				mu.Lock()
				defer mu.Unlock()
				answers[name][a.Version] = answer
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for name, config := range cases {
		for i, from := range built {
			for _, to := range built[i+1:] {
				t.Run(fmt.Sprintf("%s, %s to %s", name, from.Version, to.Version), func(t *testing.T) {
					judge(t, config, from.Version, to.Version, answers[name][from.Version], answers[name][to.Version])
				})
			}
		}
	}
}

// derived are the keys whose default says that the agent is to choose. Its choice follows from
// other keys, which are compared: tunnel-port is 0 without a tunnel up to 1.12.0, and the port
// of VXLAN in 1.12.3 (pkg/option/config.go, Populate).
var derived = map[string]bool{"tunnel-port": true}

// judge compares what is said with what is.
func judge(t *testing.T, config map[string]string, from, to string, before, after agents.Answer) {
	drifts, err := Cilium().Compare(Setup{from, config}, Setup{to, config})
	if err != nil {
		t.Fatal(err)
	}
	if dead(before) {
		return // nobody runs with that
	}
	refused := slices.ContainsFunc(drifts, func(d Drift) bool { return d.After == Refused })
	if refused != dead(after) {
		t.Fatalf("%s starts: %v (%s%s); said was %v", to, !dead(after), after.Fatal, after.Invalid, drifts)
	}
	if refused {
		return
	}
	said := map[string]Drift{} // by what is decided
	for _, d := range drifts {
		said[d.Decides] = d
		if d.Decides == "" || !ofAgent(d.Decides, from, to) {
			continue
		}
		if got := actual(Cilium(), d.Decides, to, after); got != d.After {
			t.Errorf("%s: %s goes by %q; said was %+v", d.Decides, to, got, d)
		}
		if got := inForceWith(Cilium(), d.Decides, from, before, config); got != d.Before {
			t.Errorf("%s: %s goes by %q; said was %+v", d.Decides, from, got, d)
		}
	}
	for key := range Cilium().Keys {
		o, ok := Cilium().Keys[key][to]
		if !ok || !ofAgent(key, from, to) || Cilium().inForceKey(key, to, config) != key {
			continue
		}
		valueBefore := inForceWith(Cilium(), key, from, before, config)
		valueAfter := actual(Cilium(), key, to, after)
		_, existed := Cilium().keyIn(key, from)
		if _, given := config[key]; derived[key] && !given {
			continue
		}
		if d, ok := said[key]; existed && valueBefore != valueAfter && !(ok && d.Changed()) && o.Deprecated == "" {
			t.Errorf("%s is %q with %s and %q with %s; nothing was said", key, valueBefore, from, valueAfter, to)
		}
	}
	if before.Masquerade != after.Masquerade {
		if d := said["enable-ipv4-masquerade"]; !d.Changed() {
			t.Errorf("masquerading is %v with %s and %v with %s; nothing was said", before.Masquerade, from, after.Masquerade, to)
		}
	}
	if d, ok := said["enable-ipv4-masquerade"]; ok && d.Changed() && before.Masquerade == after.Masquerade {
		t.Errorf("masquerading is %v as before; said was %+v", after.Masquerade, d)
	}
	if before.NativeRoutingCIDR != after.NativeRoutingCIDR {
		t.Logf("native CIDR %q, then %q", before.NativeRoutingCIDR, after.NativeRoutingCIDR)
		if !slices.ContainsFunc(drifts, func(d Drift) bool { return strings.Contains(d.Key, "native-routing-cidr") && d.Changed() }) {
			t.Error("nothing was said of it")
		}
	}
}

// ofAgent reports whether a key is the agent's own in these versions: the others were not asked for.
func ofAgent(key string, versions ...string) bool {
	return !slices.ContainsFunc(versions, func(v string) bool {
		o := Cilium().Keys[key][v]
		return o.Reader != "" || o.Computed
	})
}

func dead(a agents.Answer) bool { return a.Fatal != "" || a.Invalid != "" }

// keyIn returns the name that a version has for a key's setting.
func (t *Table) keyIn(key, version string) (string, bool) {
	for _, name := range t.names(key) {
		if _, ok := t.Keys[name][version]; ok {
			return name, true
		}
	}
	return "", false
}

func (t *Table) inForceKey(key, version string, config map[string]string) string {
	v, err := t.find(version)
	if err != nil {
		return ""
	}
	return configured{v, t, config}.inForce(key).key
}

// actual is what an agent goes by: the field that the key sets, where it is
// known to set one that is its own, or else the key's value.
func actual(t *Table, key, version string, a agents.Answer) string {
	o := t.Keys[key][version]
	if len(o.Sets) == 1 {
		return normal(o.Type, a.Fields[o.Sets[0]])
	}
	value := a.Values[key]
	if kind := kindOf(o.Type); kind != "" {
		if v, ok := parse(kind, value); ok {
			return v
		}
		v, _ := t.find(version)
		if value == "" {
			return v.Empty[kind]
		}
		return v.Wrong[kind]
	}
	return normal(o.Type, value)
}

func inForceWith(t *Table, key, version string, a agents.Answer, config map[string]string) string {
	name := t.inForceKey(key, version, config)
	if name == "" {
		return ""
	}
	return actual(t, name, version, a)
}
