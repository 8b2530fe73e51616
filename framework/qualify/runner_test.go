package qualify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/module"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/advise"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/goldentest"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/schema"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/must"
)

// tested is a scenario that tests components of these names; the last one is varied.
func tested(name string, components ...string) framework.Scenario {
	s := framework.Scenario{
		Incident: framework.Incident{Name: name, Title: "a title", Remedies: []string{}},
		At:       func(map[string]string) framework.Variant { return framework.Variant{Form: framework.Slice} },
	}
	for i, c := range components {
		s.Tested = append(s.Tested, framework.Tested{Name: c, Default: "1.0.0", Varied: i == len(components)-1})
	}
	return s
}

var catalogue = []framework.Scenario{
	tested("node-drain", "cilium"), tested("masquerade-drift", "cilium.from", "cilium.to"), tested("ipvs-deadlock", "kube-proxy"),
}

var errUnfit = errors.New("no Docker")

// fakeParts return steps and errors by scenario and version. Other versions are prevented.
type fakeParts struct {
	steps    map[string]bisect.Step
	errs     map[string]error
	asked    []string
	down     int // labs that were taken down
	upgrades int
}

func (p *fakeParts) Available(_ context.Context, ref string) error { return p.errs["available "+ref] }
func (p *fakeParts) Unfit(err error) bool                          { return errors.Is(err, errUnfit) }

func (p *fakeParts) Configuration(context.Context, Inputs, ConfigMap) (Configuration, error) {
	return Configuration{}, p.errs["configuration"]
}

func (p *fakeParts) Upgrade(context.Context, upgrade.Upgrade, string, string, string) (upgrade.Measures, error) {
	p.upgrades++
	return *harmless(), p.errs["upgrade"]
}

func (p *fakeParts) Recorded(upgrade.Upgrade, string, string, string) (upgrade.Measures, error) {
	return *harmless(), p.errs["record"]
}

func (p *fakeParts) Incident(s framework.Scenario, _ func(string) (framework.Scenario, error)) VersionLab {
	return fakeLab{p, s.Incident.Name}
}

type fakeLab struct {
	*fakeParts
	scenario string
}

func (l fakeLab) Judge(_ context.Context, version string) (bisect.Step, error) {
	name := l.scenario + " " + version
	l.asked = append(l.asked, name)
	if step, there := l.steps[name]; there {
		return step, l.errs[name]
	}
	return ran(framework.Prevented), l.errs[name]
}

func (l fakeLab) Down() error { l.down++; return l.errs["down"] }

func ran(v framework.Verdict) bisect.Step {
	return bisect.Step{Outcome: bisect.OutcomeOf(v), Verdict: string(v), Why: "for a reason", TookMS: 1000}
}

var noPath = Path{Skipped: []string{}, Newer: []Release{}, Unlisted: []string{}, NotListed: []string{}}

func qualified(t *testing.T) *Runner {
	t.Helper()
	r := must.Get(New(Request{Component: "cilium", From: "1.18.4", To: "1.19.3", Thresholds: bounds, Command: again}, catalogue))(t)
	r.inputs.Path = noPath
	r.refs = map[string]string{"1.18.4": "1.18.4", "1.19.3": "1.19.3"}
	r.Dir = must.Get(report.NewRun(t.TempDir(), "cilium", time.Now()))(t)
	return r
}

func TestRun(t *testing.T) {
	version := module.Version{Path: "x", Version: "v1.19.3"}
	unpublished := &images.NotPublishedError{Module: version, Err: errors.New("403 Forbidden")}
	required := &images.NotPublishedError{Module: version, Required: true, Err: errors.New("403 Forbidden")}
	silent := &images.UnreachableError{Module: version, Err: errors.New("dial tcp: refused")}
	skipped := func(why string, err error) bisect.Step {
		return bisect.Step{Outcome: bisect.Skipped, Why: why, Err: err}
	}
	type steps = map[string]bisect.Step
	type errs = map[string]error
	for _, test := range []struct {
		name   string
		steps  steps
		errs   errs
		want   Verdict // empty: Run returns an error
		says   string  // part of the first line, or of the error
		broken string  // part of the other errors
	}{
		{"nothing is introduced", nil, nil, Go, "no incident is introduced (2 never there)", ""},
		{"the upgrade is affected", steps{"masquerade-drift 1.19.3": ran(framework.Reproduced)}, nil, NoGo, "introduced by the upgrade itself", ""},
		{"the new version is affected", steps{"node-drain 1.19.3": ran(framework.Missed)}, nil, NoGo, "missed with 1.19.3", ""},
		{"both are", steps{"node-drain 1.18.4": ran(framework.Reproduced), "node-drain 1.19.3": ran(framework.Reproduced)}, nil, Go, "1 still there", ""},
		{"a run that says nothing", steps{"masquerade-drift 1.19.3": ran(framework.Vacuous)}, nil, Unknown, "not judged with 1.19.3: for a reason", ""},
		{"a version that no recipe builds", steps{"node-drain 1.18.4": skipped("no recipe builds it", nil)}, nil, Go, "1 not judged", ""},
		{"a version that is not available", nil, errs{"available 1.19.3": unpublished}, "", "x@v1.19.3 is not published", ""},
		{"a module that the new version requires is not available", nil, errs{"available 1.19.3": required}, "", "something that x@v1.19.3 requires is not published", ""},
		{"neither version is available", nil, errs{"available 1.18.4": required, "available 1.19.3": unpublished}, "", "x@v1.19.3 requires is not published: 403 Forbidden\nx@v1.19.3 is not published", ""},
		{"no network, and all is built", nil, errs{"available 1.19.3": silent, "available 1.18.4": silent}, Go, "no incident is introduced", ""},
		{"a version that is not published", steps{"node-drain 1.19.3": skipped("not published", unpublished)}, nil, "", "x@v1.19.3 is not published", ""},
		{"a version whose modules are not published", steps{"node-drain 1.19.3": skipped("not published", required)}, nil, Unknown, "not judged with 1.19.3: not published", ""},
		{"no network to the proxy", nil, errs{"node-drain 1.19.3": silent}, Unknown, "the module proxy does not answer: dial tcp: refused", ""},
		{"a run that breaks", nil, errs{"node-drain 1.19.3": errors.New("no node\nat all")}, Unknown, "not judged with 1.19.3: no node", "no node\nat all"},
		{"a run that breaks, and does not decide", nil, errs{"node-drain 1.18.4": errors.New("no node")}, Go, "1 not judged", "no node"},
		{"a machine that is not fit", nil, errs{"node-drain 1.19.3": errUnfit}, "", errUnfit.Error(), ""},
		{"a lab that does not go down", nil, errs{"down": errors.New("busy")}, "", "busy", ""},
		{"an interrupt", nil, errs{"node-drain 1.19.3": engine.ErrInterrupted}, "", "interrupted", ""},
		{"an upgrade that breaks", nil, errs{"upgrade": errors.New("no lab")}, Unknown, "the rollout did not finish: no lab", "no lab"},
		{"an upgrade that is interrupted", nil, errs{"upgrade": engine.ErrInterrupted}, "", "interrupted", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := qualified(t)
			p := &fakeParts{steps: test.steps, errs: test.errs}
			err := r.Run(t.Context(), p)
			if strings.Contains(test.name, "available") && test.want == "" {
				must.Equal(t, "labs, and upgrades", [...]int{0, 0}, [...]int{len(p.asked), p.upgrades})
			}
			if test.errs["upgrade"] == engine.ErrInterrupted {
				must.Equal(t, "came before the upgrade", 0, len(p.asked))
			}
			q := r.Result()
			says := q.Heading()
			if err != nil {
				q.Verdict, says = "", err.Error()
			}
			must.Equal(t, says, test.want, q.Verdict)
			must.Contain(t, says, test.says)
			must.Equal(t, "broken", cmp.Or(test.broken, "<nil>"), fmt.Sprint(r.Broken()))
			if want := min(len(p.asked), 2); len(p.asked) != 2 && p.down != want || p.down == 0 && len(p.asked) > 0 {
				t.Errorf("%d labs were taken down after %q", p.down, p.asked)
			}
			must.NoError(t, schema.Validate("qualification", must.Read(t, filepath.Join(r.Dir, FileJSON))))
		})
	}
}

func TestConfigurationIsRead(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, "GO: no incident is introduced (2 never there), no key is known with which 1.19.3 does not start, traffic on the lab lost nothing in the upgrade and the rollback"},
		{errors.New("no agent\nat all"), "UNKNOWN: parts that decide could not be judged: the effect on the configuration: no agent"},
	} {
		r := qualified(t)
		r.Config, r.Source = &ConfigMap{Name: "c", Data: map[string]string{"masquerade": "false"}}, "-"
		path := r.inputs.Path
		must.NoError(t, r.plan())
		r.inputs.Path = path
		must.NoError(t, r.Run(t.Context(), &fakeParts{errs: map[string]error{"configuration": test.err}}))
		must.Equal(t, "", test.want, r.Result().Heading())
		must.Equal(t, r.Broken(), true, errors.Is(r.Broken(), test.err))
	}
}

// Incidents with results of earlier runs do not run again, and their results count.
func TestKnownIncidents(t *testing.T) {
	result := func(incident, from, to, verdict, under string) advise.Known {
		return advise.Known{Component: "cilium", Incident: incident, From: from, To: to, Verdict: verdict, Under: under, When: "2026-11-01", Report: "r/1"}
	}
	drain := result("node-drain", "1.18.4", "1.18.4", "prevented", "")
	for _, test := range []struct {
		name    string
		results []advise.Known
		asked   []string // the parts that run
		want    Verdict
		says    string
	}{
		{"one version", []advise.Known{drain}, []string{"node-drain 1.19.3", "masquerade-drift 1.19.3"}, Go,
			"incident, node-drain with 1.18.4, now: an earlier run has shown it (--fresh runs it): prevented on 2026-11-01, r/1"},
		{"all", []advise.Known{drain, result("node-drain", "1.19.3", "1.19.3", "missed", ""), result("masquerade-drift", "1.18.4", "1.19.3", "prevented", "")},
			nil, NoGo, "incident, masquerade-drift with 1.19.3, now: an earlier run has shown it"},
		{"under a setting, and of other upgrades", []advise.Known{result("node-drain", "1.19.3", "1.19.3", "missed", "ipv6"),
			result("masquerade-drift", "1.18.3", "1.19.3", "reproduced", "")}, []string{"node-drain 1.18.4", "node-drain 1.19.3", "masquerade-drift 1.19.3"}, Go, ""},
		{"against the record", []advise.Known{result("masquerade-drift", "1.18.4", "1.19.3", "reproduced", "")},
			[]string{"node-drain 1.18.4", "node-drain 1.19.3", "masquerade-drift 1.19.3"}, Go, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := qualified(t)
			r.Known = test.results
			all := slices.Clone(catalogue)
			if test.name == "against the record" {
				all[1].Variants = []framework.Variant{{Role: framework.Fixed, Components: map[string]string{"cilium.from": "1.18.4", "cilium.to": "1.19.3"}}}
			}
			must.NoError(t, r.recall(all))
			must.Equal(t, "results before a run", 0, len(r.Result().results("")))
			p := &fakeParts{}
			must.NoError(t, r.Run(t.Context(), p))
			q := r.Result()
			must.Equal(t, "asked", test.asked, p.asked)
			must.Equal(t, "verdict", test.want, q.Verdict)
			not := strings.Join(q.NotTested, "\n")
			must.Contain(t, not, test.says)
			must.Equal(t, not, test.says != "", strings.Contains(not, "earlier run"))
			must.Equal(t, "results of this run", len(test.asked), len(q.results(""))-1)
		})
	}
}

type interrupting struct {
	*fakeParts
	interrupt func()
}

func (i interrupting) Incident(s framework.Scenario, at func(string) (framework.Scenario, error)) VersionLab {
	return interruptedLab{i.fakeParts.Incident(s, at), i}
}

type interruptedLab struct {
	VersionLab
	parts interrupting
}

func (l interruptedLab) Judge(ctx context.Context, version string) (bisect.Step, error) {
	if len(l.parts.asked) == 1 {
		l.parts.interrupt()
	}
	return l.VersionLab.Judge(ctx, version)
}

func TestRunIsInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	r := qualified(t)
	p := &fakeParts{steps: map[string]bisect.Step{"node-drain 1.18.4": ran(framework.Reproduced)}}
	err := r.Run(ctx, interrupting{p, interrupt})
	must.Equal(t, err, [...]any{true, 1, 2}, [...]any{errors.Is(err, engine.ErrInterrupted), p.down, len(p.asked)})
	must.Contain(t, "begins "+string(must.Read(t, filepath.Join(r.Dir, FileText))), "begins UNKNOWN: ", "node-drain (", notRun)
}

// A resumed qualification repeats only the parts without a result.
func TestResume(t *testing.T) {
	p := &fakeParts{steps: map[string]bisect.Step{
		"node-drain 1.18.4": ran(framework.Reproduced),
		"node-drain 1.19.3": {Outcome: bisect.Skipped, Why: "not built: it broke"},
	}, errs: map[string]error{"masquerade-drift 1.19.3": engine.ErrInterrupted}}
	first := qualified(t)
	err := first.Run(t.Context(), p)
	must.Equal(t, err, [...]any{true, 3, 1}, [...]any{errors.Is(err, engine.ErrInterrupted), len(p.asked), p.upgrades})
	resume := func(p *fakeParts, asked []string, upgrades int) *Runner {
		t.Helper()
		r := qualified(t)
		must.NoError(t, r.Resume(first.Dir))
		must.NoError(t, r.Run(t.Context(), p))
		q := r.Result()
		must.Equal(t, "asked", asked, p.asked)
		got := [...]any{q.Verdict, true, p.upgrades, r.Dir}
		must.Equal(t, q.Heading(), [...]any{Go, q.Began.Equal(first.began), upgrades, first.Dir}, got)
		return r
	}
	resume(&fakeParts{}, []string{"node-drain 1.19.3", "masquerade-drift 1.19.3"}, 0)
	// A complete qualification is only judged.
	r := resume(&fakeParts{errs: map[string]error{"upgrade": errors.New("not again")}}, nil, 0)
	// Without a record an upgrade is measured again: an older relapse may have measured less.
	resume(&fakeParts{errs: map[string]error{"record": errors.New("no record")}}, nil, 1)
	// An upgrade with other settings is not resumed.
	other := qualified(t)
	other.inputs.Settings = "others"
	must.NoError(t, other.Resume(first.Dir))
	must.Equal(t, "measures", nil, other.inputs.Upgrade.Measures)
	var out strings.Builder
	r.WritePlan(&out)
	must.Contain(t, out.String(), "1.18.4: reproduced, from the earlier run", "measured in the earlier run")
}

func TestResumeIsRefused(t *testing.T) {
	store := func(change func(*Runner)) string {
		r := qualified(t)
		change(r)
		must.NoError(t, r.save())
		return r.Dir
	}
	other := store(func(r *Runner) { r.inputs.To = "1.12.0" })
	config := Configuration{Source: "-", ConfigMap: "kube-system/cilium-config"}
	configured := store(func(r *Runner) { r.inputs.Configuration = config })
	moved := store(func(r *Runner) { r.inputs.Subnets = netip.MustParsePrefix("10.200.0.0/16") })
	broken, empty := t.TempDir(), t.TempDir()
	must.Write(t, filepath.Join(broken, FileJSON), `{"schema":"relapse.report/v2"}`)
	for _, test := range []struct{ name, dir, says string }{
		{"nothing there", empty, "there is no qualification.json in " + empty},
		{"something else", broken, filepath.Join(broken, FileJSON) + `: its schema is "relapse.report/v2", not "relapse.qualification/v1"`},
		{"another upgrade", other, other + " is of cilium 1.18.4 to 1.12.0"},
		{"the ConfigMap is not given", configured, configured + " also has the ConfigMap kube-system/cilium-config: give it again with --config"},
		{"on other subnets", moved, moved + " has its labs on subnets in 10.200.0.0/16, and this one on the documented subnets (--subnets)"},
	} {
		must.Equal(t, test.name, test.says, fmt.Sprint(qualified(t).Resume(test.dir)))
	}
}

func TestPlan(t *testing.T) {
	var out strings.Builder
	r := qualified(t)
	r.WritePlan(&out)
	r.upgradable, r.Config = false, &ConfigMap{Name: "cilium-config", Data: map[string]string{"masquerade": "false"}}
	must.NoError(t, r.plan())
	r.inputs.Path = Path{Skipped: []string{"1.9", "1.10"}}
	r.WritePlan(&out)
	goldentest.Compare(t, "plan.txt", out.String())
}

// The drifts say whether a version starts, and both versions are judged.
func TestCiliumConfiguration(t *testing.T) {
	old := map[string]string{"tunnel": "disabled", "masquerade": "false", "native-routing-cidr": "10.0.0.0/8"}
	const refused = "native routing cidr must be configured"
	for _, test := range []struct{ from, to, refusedFrom, refusedTo string }{
		{"1.8.1", "1.11.1", "", ""}, {"1.11.1", "1.12.0", "", refused}, {"1.12.0", "1.11.1", refused, ""},
	} {
		c := must.Get(compared(configdrift.Cilium(), Inputs{From: test.from, To: test.to}, old))(t)
		must.Equal(t, test.to, [...]bool{test.refusedFrom == "", test.refusedTo == ""}, [...]bool{c.RefusedFrom == "", c.RefusedTo == ""})
		must.Contain(t, c.RefusedFrom, test.refusedFrom)
		must.Contain(t, c.RefusedTo, test.refusedTo)
		if d := c.Drifts[0]; test.from == "1.8.1" {
			must.Equal(t, d.Key, configdrift.NotRead, d.Kind)
			must.Equal(t, "key and values", "masquerade false true", d.Key+" "+d.Before+" "+d.After)
		}
	}
	must.Fail(t, must.Err(compared(configdrift.Cilium(), Inputs{From: "1.8.1", To: "1.99.0"}, old)), "1.99")
}

func TestIncidentThatNeedsAValue(t *testing.T) {
	needs := tested("lost-permission", "cilium")
	needs.NeedsValue = "bgpControlPlane.enabled"
	switched := func(on bool) *Values {
		return &Values{lab: map[string]any{"bgpControlPlane": map[string]any{"enabled": on}}}
	}
	for _, c := range []struct {
		name   string
		values *Values
		runs   bool
	}{
		{"no values", nil, true}, {"the defaults", &Values{}, false},
		{"switched off", switched(false), false}, {"switched on", switched(true), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := must.Get(New(Request{Component: "cilium", From: "1.18.4", To: "1.19.3", Values: c.values}, []framework.Scenario{needs}))(t)
			found := slices.Contains(r.inputs.LeftOut, "lost-permission cannot happen with your values: it needs bgpControlPlane.enabled")
			must.Equal(t, r.inputs.LeftOut, [...]bool{c.runs, !c.runs}, [...]bool{len(r.inputs.Incidents) == 1, found})
		})
	}
}

func TestTrials(t *testing.T) {
	for component, want := range map[string]string{
		"cilium":     "node-drain with 1.0.0 and with 2.0.0, masquerade-drift with the upgrade itself",
		"kube-proxy": "ipvs-deadlock with 1.0.0 and with 2.0.0",
		"metallb":    "", // its upgrade is measured
		"cilum":      `relapse neither tests nor upgrades a component "cilum"; nearest is "cilium"`,
	} {
		trials, err := trialsOf(catalogue, component, "1.0.0", "2.0.0")
		var got []string
		for _, tr := range trials {
			got = append(got, tr.String())
			i := must.Get(tr.incident())(t)
			must.Contain(t, i.Command, "2.0.0")
			must.Equal(t, i.Command, i.OfUpgrade, strings.Contains(i.Command, "1.0.0"))
		}
		if err != nil {
			got = []string{err.Error()}
		}
		must.Equal(t, component, want, strings.Join(got, ", "))
	}
}

func TestSubnets(t *testing.T) {
	s := tested("node-drain", "cilium")
	s.Topology = topology.Topology{Name: "node-drain", Networks: []topology.Network{topology.NewNetwork("nodes", "10.4.94.0/24")}}
	request := Request{Component: "cilium", From: "1.18.4", To: "1.19.3", Subnets: netip.MustParsePrefix("10.200.0.0/16")}
	r := must.Get(New(request, []framework.Scenario{s}))(t)
	labs := r.Topologies()
	must.Equal(t, "", 2, len(labs))
	for _, lab := range labs {
		for _, n := range lab.Networks {
			must.Equal(t, n, true, request.Subnets.Contains(n.Subnet.Addr()))
		}
	}
	must.Equal(t, "the inputs have", request.Subnets, r.inputs.Subnets)
	must.Contain(t, r.inputs.Incidents[0].Command, "--subnets 10.200.0.0/24")
	var plan strings.Builder
	r.WritePlan(&plan)
	must.Contain(t, plan.String(), `"nodes" of node-drain has the subnet 10.200.0.0/24`, `"uplink" of upgrade-cilium has the subnet 10.200.1.0/24`)
	request.Subnets = netip.MustParsePrefix("10.62.0.0/16")
	must.Fail(t, must.Err(New(request, []framework.Scenario{s})),
		"--subnets: 10.62.0.0/16 overlaps 10.62.64.0/20, the pod range of upgrade-cilium, which stays: choose another prefix")
}

// With versions that are built whole no script of a slice runs: only the upgrade is judged.
func TestWholeVersions(t *testing.T) {
	c, r := must.Get(images.Open("../.."))(t), qualified(t)
	must.NoError(t, r.ask(c))
	for _, version := range []string{"1.18.4", "1.19.3"} {
		r.refs[version] = must.Get(r.image(c, version))(t)
		must.Equal(t, "it is asked for by", "quay.io/cilium/cilium:v"+version, r.refs[version])
	}
	r.catalogue = c
	parts := &fakeParts{}
	must.NoError(t, r.Run(t.Context(), parts))
	must.Equal(t, "upgrades, and labs of incidents", [...]int{1, 0}, [...]int{parts.upgrades, len(parts.asked)})
	q := r.Result()
	for _, i := range q.Inputs.Incidents {
		must.Equal(t, "not asked", "the script of "+i.Name+" runs cilium as a slice, and 1.19.3 is built whole", i.NotAsked)
	}
	built := map[string]string{"1.18.4": "whole, with k8s.io/apimachinery v0.33.3 for github.com/cilium/apimachinery v0.33.3-1"}
	must.Equal(t, "built", built, q.Inputs.Built)
	must.Equal(t, q.Heading(), Go, q.Verdict)
}

func TestSliceToWhole(t *testing.T) {
	must.Fail(t, must.Err(New(Request{Component: "cilium", From: "1.12.0", To: "1.18.0"}, catalogue)),
		"an upgrade of cilium from 1.12.0 to 1.18.0 has no lab: expected two versions from 1.15.0 on")
}

// An incident does not run if no recipe builds an image of its lab with either version. The upgrade's own images are
// looked up.
func TestLeftOut(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c := must.Get(images.Open(filepath.Join("..", "..")))(t)
	s := tested("ipvs-deadlock", "kube-proxy")
	s.At = func(versions map[string]string) framework.Variant {
		return framework.Variant{Form: framework.Whole, Images: []string{"k8s.gcr.io/kube-proxy:v" + versions["kube-proxy"]}}
	}
	request := Request{Component: "kube-proxy", From: "1.35.4", To: "1.36.3", Thresholds: bounds, Command: again}
	r := must.Get(New(request, []framework.Scenario{s}))(t)
	must.Equal(t, "image", "registry.k8s.io/kube-proxy:v1.35.4", must.Get(r.image(c, "1.35.4"))(t))
	r.leaveOut(c)
	const left = "ipvs-deadlock does not run with 1.35.4 and 1.36.3: its lab needs k8s.gcr.io/kube-proxy, of which there are those " +
		"from 1.11.0 and below 1.14.0"
	must.Equal(t, "left out", []string{left}, r.inputs.LeftOut)
	must.Equal(t, "trials", 0, len(r.trials))
	r.inputs.Upgrade.Measures, r.inputs.Upgrade.Why = harmless(), ""
	q := r.Result()
	must.Contain(t, q.Heading(), "GO: no incident of the catalogue ran, ")
	must.Contain(t, strings.Join(q.NotTested, "\n"), left)
}
