//go:build lab && night

package upgrade_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/chart/releasefile"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/suite"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology/lab/kindlab"
	"github.com/relapse-dev/relapse/topology/must"
)

var trips = map[string]struct {
	component, from, to string
	// sessions is set where the component speaks BGP with the router.
	sessions  bool
	values    string // of the chart, by their file in testdata
	manifests string
}{
	"kube-router": {"kube-router", "1.5.1", "2.1.0", true, "", ""},
	"kube-proxy":  {"kube-proxy", "1.35.4", "1.36.3", false, "", ""},
	// The only release that is published: each node gets it again.
	"calico": {"calico", "3.28.5", "3.28.5", true, "", ""},
	// Whole Cilium in three modes of its chart.
	"cilium-whole":           {"cilium", "1.18.4", "1.19.3", false, "", ""},
	"cilium-native-bgp":      {"cilium", "1.18.4", "1.19.3", true, "cilium-native-bgp", ""},
	"cilium-moved-bgp":       {"cilium", "1.17.8", "1.18.4", true, "cilium-native-bgp", "cilium-bgp"},
	"cilium-tunnel-iptables": {"cilium", "1.18.4", "1.19.3", false, "cilium-tunnel-iptables", ""},
	"cilium-dual":            {"cilium", "1.18.4", "1.19.3", true, "cilium-dual", ""},
	"metallb-dual":           {"metallb", "0.14.8", "0.14.9", true, "", "metallb-dual"},
	// With BFD, on both ends.
	"metallb-bfd": {"metallb", "0.14.8", "0.14.9", true, "", "metallb-bfd"},
}

// RELAPSE_UPGRADE names the trip (default: kube-router), RELAPSE_REPORTS the folder for the evidence.
func TestUpgrade(t *testing.T) {
	name := cmp.Or(os.Getenv("RELAPSE_UPGRADE"), "kube-router")
	trip, found := trips[name]
	if !found {
		t.Fatalf("no upgrade %q", name)
	}
	var settings upgrade.Settings
	if trip.values != "" {
		settings.Values = upgrade.ReadValues(t, trip.values)
	}
	if trip.manifests != "" {
		settings.Manifests = string(must.Read(t, "testdata/"+trip.manifests+".yaml"))
	}
	u, m, _ := tried(t, trip.component, trip.from, trip.to, settings)
	// Whatever a path loses, it must be measured.
	for _, p := range []upgrade.Phase{m.Resting, m.Upgrade.During, m.Upgrade.After, m.Back.During, m.Back.After} {
		for _, path := range p.Paths {
			must.Equal(t, fmt.Sprintf("measured from %s: %+v", p.Began, path), true, 2*(path.Answered+path.Lost) >= path.Due)
		}
		for _, r := range p.Routers {
			must.Equal(t, fmt.Sprintf("polled from %s: %+v", p.Began, r), true, 2*r.Polls >= r.Due)
		}
	}
	for _, path := range m.Resting.Paths {
		must.Equal(t, fmt.Sprintf("at rest: %+v", path), false, path.Broken > 0 || 100*path.Lost > path.Due)
	}
	for _, r := range []*upgrade.Rollout{m.Upgrade, m.Back} {
		changed := slices.ContainsFunc(r.During.Routers, func(r upgrade.Router) bool { return len(r.Resets) > 0 })
		must.Equal(t, r.During.Routers, [...]any{len(u.Nodes), trip.sessions}, [...]any{len(r.Nodes), changed})
	}
	must.Equal(t, "what is left was checked", true, m.Left != nil)
}

// tried makes an upgrade, which must come to its end, and judges it.
func tried(t *testing.T, component, from, to string, s upgrade.Settings) (upgrade.Upgrade, upgrade.Measures, qualify.Qualification) {
	t.Helper()
	u, o := must.Get(upgrade.Of(component, from, to, s))(t), options(t)
	m, err := upgrade.Run(t.Context(), u, from, to, suite.Labs(o), o.Options)
	q := judgedAlone(t, component, from, to, &m)
	if err != nil || m.Stopped != "" {
		t.Fatalf("%v; stopped: %s", err, m.Stopped)
	}
	return u, m, q
}

func judgedAlone(t *testing.T, component, from, to string, m *upgrade.Measures) qualify.Qualification {
	t.Helper()
	inputs := qualify.Inputs{Component: component, From: from, To: to, Upgrade: qualify.Upgrade{Measures: m}}
	inputs.Configuration.NotAsked = "the upgrade alone is judged"
	q := qualify.Judge(inputs, qualify.Thresholds{MaxGapMS: 1000, MaxLost: 0.001}, "relapse qualify")
	t.Log(q.Text())
	return q
}

// Agents run with the values of real clusters. RELAPSE_VALUES replaces the files of testdata, RELAPSE_VERSION replaces
// 1.18.4, and RELAPSE_WITHOUT names features to go without.
func TestInstall(t *testing.T) {
	files, err := filepath.Glob(cmp.Or(os.Getenv("RELAPSE_VALUES"), "testdata/cluster-*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of values: %v", err)
	}
	version := cmp.Or(os.Getenv("RELAPSE_VERSION"), "1.18.4")
	without := strings.FieldsFunc(os.Getenv("RELAPSE_WITHOUT"), func(r rune) bool { return r == ',' })
	installed := errors.New("installed")
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			given, err := releasefile.ReadAll("cilium", nil, releasefile.File{Name: file, Text: must.Read(t, file)})
			if err != nil {
				t.Skip(err)
			}
			values, err := qualify.ReadValues(t.Context(), "cilium", version, "1.19.5", netip.Prefix{}, given, without...)
			if err != nil {
				t.Skip(err)
			}
			u := must.Get(upgrade.Of("cilium", version, "1.19.5", upgrade.Settings{Values: values.OfLab()}))(t)
			install := u.Install
			u.Install = func(version string) framework.Action {
				return func(ctx context.Context, r *framework.Run) error {
					began := time.Now()
					if err := install(version)(ctx, r); err != nil {
						return err
					}
					t.Logf("%s: %s: installed in %s; %s", file, values.Mode, time.Since(began).Round(time.Second), u.Explain(ctx, r, u.Nodes[0]))
					return installed
				}
			}
			o := options(t)
			_, err = upgrade.Run(t.Context(), u, version, "1.19.5", suite.Labs(o), o.Options)
			must.Equal(t, err, true, errors.Is(err, installed))
		})
	}
}

// Without graceful restart of BGP, the vendor's default, the router forgets the pods of a node while its agent is
// replaced: a NO-GO for paths from outside, and for no path between pods.
func TestWithoutGracefulRestart(t *testing.T) {
	u, m, q := tried(t, "cilium", "1.18.4", "1.19.3", upgrade.Settings{Values: upgrade.ReadValues(t, "cilium-native-bgp")})
	must.Equal(t, q.Heading(), qualify.NoGo, q.Verdict)
	for _, row := range q.Rows {
		between := strings.HasPrefix(row.Name, "pod to pod") || strings.HasPrefix(row.Name, "new connections, pod to pod")
		if fails := row.State == qualify.Fails; row.Name == "outside to pod" && !fails || between && fails {
			t.Errorf("%s is %s", row.Name, row.State)
		}
	}
	withdrawn := m.Upgrade.During.Routers[0].Withdrawals
	must.Equal(t, withdrawn, len(u.Nodes), len(withdrawn))
}

// The chart of Cilium 1.19.3 removes a permission that 1.18 needs when it starts (cilium#45802): the BGP of the agent
// that is restarted in the middle stays down, and packets from outside are lost. The chart of 1.19.5 keeps it.
func TestLostPermission(t *testing.T) {
	for to, lost := range map[string]bool{"1.19.3": true, "1.19.5": false} {
		t.Run(to, func(t *testing.T) {
			manifests := string(must.Read(t, "testdata/cilium-bgp.yaml"))
			s := upgrade.Settings{Values: upgrade.ReadValues(t, "cilium-native-bgp"), Manifests: manifests}
			_, m, q := tried(t, "cilium", "1.18.4", to, s)
			states := map[string]qualify.State{}
			for _, row := range q.Rows {
				states[row.Name] = row.State
			}
			for _, name := range []string{"restart in the middle", "outside to pod"} {
				must.Equal(t, name+" fails", lost, states[name] == qualify.Fails)
			}
			must.Equal(t, q.Heading(), lost, q.Verdict == qualify.NoGo)
			must.Equal(t, "restarted on the rollback, and ready", true, m.Back.Restart != nil && !m.Back.Restart.Ready.IsZero())
		})
	}
}

// An upgrade that is interrupted on its second node takes the lab down, and keeps its measures.
func TestInterruptedUpgrade(t *testing.T) {
	o := options(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	u := must.Get(upgrade.Of("kube-router", "1.5.1", "2.1.0", upgrade.Settings{}))(t)
	roll := u.Roll
	u.Roll = func(ctx context.Context, r *framework.Run, node, version string) error {
		if node == u.Nodes[1] {
			cancel()
		}
		return roll(ctx, r, node, version)
	}
	m, err := upgrade.Run(ctx, u, "1.5.1", "2.1.0", suite.Labs(o), o.Options)
	if !errors.Is(err, engine.ErrInterrupted) || m.Stopped != "" || m.Back != nil || m.Left != nil {
		t.Errorf("%v; %+v", err, m)
	}
	if m.Upgrade == nil || len(m.Upgrade.Nodes) != 2 || m.Upgrade.Nodes[0].Ready.IsZero() || !m.Upgrade.Nodes[1].Ready.IsZero() {
		t.Fatalf("the upgrade is %+v", m.Upgrade)
	}
	for _, path := range append(m.Resting.Paths, m.Upgrade.During.Paths...) {
		must.Equal(t, fmt.Sprintf("%+v", path), true, path.Due > 0 && 2*(path.Answered+path.Lost) >= path.Due)
	}
	must.Equal(t, "the lab is left", false, must.Get(kindlab.Exists(t.Context(), o.Docker, u.Topology.Name))(t))
}

func options(t *testing.T) suite.Options {
	t.Helper()
	docker := must.Get(client.New(client.FromEnv))(t)
	t.Cleanup(func() { docker.Close() })
	catalogue := must.Get(images.Open("../.."))(t)
	output := cmp.Or(os.Getenv("RELAPSE_REPORTS"), t.TempDir())
	return suite.Options{Options: engine.Options{Output: output}, Docker: docker, Images: catalogue}
}
