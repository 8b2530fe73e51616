package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/module"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/bisect"
	"github.com/relapse-dev/relapse/framework/detect/configdrift"
	"github.com/relapse-dev/relapse/framework/detect/configdrift/agents"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/qualify"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/framework/report/schema"
	"github.com/relapse-dev/relapse/framework/upgrade"
	"github.com/relapse-dev/relapse/images"
	"github.com/relapse-dev/relapse/scenarios"
	"github.com/relapse-dev/relapse/topology/host"
)

// qualified is a qualification of Cilium 1.8.1 to 1.11.1 whose runs end as these steps
// say, by scenario and version. What is not in there is prevented. Down counts the labs
// that were taken down.
func qualified(t *testing.T, steps map[string]bisectionStep, errs map[string]error) (q *qualification, down *int, asked *[]string) {
	t.Helper()
	trials, err := trialsOf(scenarios.All, "cilium", "1.8.1", "1.11.1")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := report.NewRun(t.TempDir(), "cilium", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	down, asked = new(int), new([]string)
	q = &qualification{
		had:    func(_ context.Context, version string) error { return errs["had "+version] },
		step:   func(string) func(error) { return func(error) {} },
		trials: trials, dir: dir, began: time.Now(), note: func(string) {}, thresholds: qualify.Thresholds{MaxGapMS: 1000, MaxLost: 0.001},
		options: qualifyOptions{maxGap: time.Second, maxLost: "0.1%", timeout: time.Hour},
		upgrade: func(context.Context, string, string) (upgrade.Measures, error) {
			return unharmed(), errs["upgrade"]
		},
	}
	q.judge = func(tr trial) (func(context.Context, string) (bisectionStep, error), func() error) {
		return func(ctx context.Context, version string) (bisectionStep, error) {
			name := tr.scenario.Incident.Name + " " + version
			*asked = append(*asked, name)
			if step, there := steps[name]; there {
				return step, errs[name]
			}
			return ran(version, framework.Prevented), errs[name]
		}, func() error { *down++; return errs["down"] }
	}
	if err := q.prepare("cilium", "1.8.1", "1.11.1", qualify.Path{}); err != nil {
		t.Fatal(err)
	}
	return q, down, asked
}

func ran(version string, v framework.Verdict) bisectionStep {
	return bisectionStep{Version: version, Outcome: outcomeOfVerdict(v), Verdict: string(v), Why: "so it is", TookMS: 1000}
}

// unharmed is an upgrade in which nothing was lost.
func unharmed() upgrade.Measures {
	phase := func() upgrade.Phase {
		return upgrade.Phase{Paths: []upgrade.Path{{Name: "pod to pod", Due: 100, Sent: 100, Answered: 100}}}
	}
	return upgrade.Measures{
		Component: "cilium", Form: "slice", Topology: "t", Resting: phase(), Left: []upgrade.Difference{},
		Upgrade: &upgrade.Rollout{During: phase(), After: phase()}, Back: &upgrade.Rollout{During: phase(), After: phase()},
	}
}

func TestQualification(t *testing.T) {
	unpublished := &images.NotPublishedError{Module: module.Version{Path: "x", Version: "v1.11.1"}, Err: errors.New("403 Forbidden")}
	required := &images.NotPublishedError{Module: module.Version{Path: "x", Version: "v1.11.1"}, Required: true, Err: errors.New("403 Forbidden")}
	silent := &images.UnreachableError{Module: module.Version{Path: "x", Version: "v1.11.1"}, Err: errors.New("dial tcp: refused")}
	skipped := func(why string, err error) bisectionStep {
		return bisectionStep{Outcome: bisect.Skipped, Why: why, err: err}
	}
	for _, test := range []struct {
		name   string
		steps  map[string]bisectionStep
		errs   map[string]error
		status int
		says   string // part of the first line, or of the error
	}{
		{"nothing speaks against it", nil, nil, exitExpected, "no incident is introduced (2 never there)"},
		{"the upgrade hurts", map[string]bisectionStep{"masquerade-drift 1.11.1": ran("1.11.1", framework.Reproduced)}, nil, exitUnexpected, "introduced by the upgrade itself"},
		{"the new version is affected", map[string]bisectionStep{"node-drain 1.11.1": ran("1.11.1", framework.Missed)}, nil, exitUnexpected, "missed with 1.11.1"},
		{
			"both are", map[string]bisectionStep{"node-drain 1.8.1": ran("1.8.1", framework.Reproduced), "node-drain 1.11.1": ran("1.11.1", framework.Reproduced)}, nil,
			exitExpected, "1 still there",
		},
		{"a run that says nothing", map[string]bisectionStep{"masquerade-drift 1.11.1": ran("1.11.1", framework.Vacuous)}, nil, exitInconclusive, "not judged with 1.11.1: so it is"},
		{"a version that no recipe builds", map[string]bisectionStep{"node-drain 1.8.1": skipped("no recipe builds it", nil)}, nil, exitExpected, "1 not judged"},
		{"a version that cannot be had", nil, map[string]error{"had 1.11.1": unpublished}, exitUsage, "x@v1.11.1 is not published"},
		{"no network, and all is built", nil, map[string]error{"had 1.11.1": silent, "had 1.8.1": silent}, exitExpected, "no incident is introduced"},
		{"a version that is not published", map[string]bisectionStep{"node-drain 1.11.1": skipped("not published", unpublished)}, nil, exitUsage, "x@v1.11.1 is not published"},
		{"a version whose modules are not published", map[string]bisectionStep{"node-drain 1.11.1": skipped("not published", required)}, nil, exitInconclusive, "not judged with 1.11.1: not published"},
		{"no network to the proxy", nil, map[string]error{"node-drain 1.11.1": silent}, exitInconclusive, "the module proxy does not answer: dial tcp: refused"},
		{"a run that breaks", nil, map[string]error{"node-drain 1.11.1": errors.New("no node\nat all")}, exitInconclusive, "not judged with 1.11.1: no node"},
		{"a run that breaks, and does not decide", nil, map[string]error{"node-drain 1.8.1": errors.New("no node")}, exitExpected, "1 not judged"},
		{"a machine that is not fit", nil, map[string]error{"node-drain 1.11.1": &host.UnfitError{}}, exitMachine, ""},
		{"a lab that does not go down", nil, map[string]error{"down": errors.New("busy")}, exitUnexpected, "busy"},
		{"an interrupt", nil, map[string]error{"node-drain 1.11.1": engine.ErrInterrupted}, exitInterrupted, "interrupted"},
		{"an upgrade that breaks", nil, map[string]error{"upgrade": errors.New("no lab")}, exitInconclusive, "the rollout did not come to its end: no lab"},
		{"an upgrade that is interrupted", nil, map[string]error{"upgrade": engine.ErrInterrupted}, exitInterrupted, "interrupted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			q, down, asked := qualified(t, test.steps, test.errs)
			err := q.run(t.Context())
			says := ""
			if err == nil {
				says = q.judged().Heading()
				err = outcomeOfQualification(q.judged().Verdict, errors.Join(q.broken...))
			} else {
				says = err.Error()
			}
			if status := exitStatus(t.Context(), err); status != test.status || !strings.Contains(says, test.says) {
				t.Errorf("exit status %d, %s\nwant %d, %s", status, says, test.status, test.says)
			}
			if want := min(len(*asked), 2); len(*asked) != 2 && *down != want || *down == 0 && len(*asked) > 0 {
				t.Errorf("%d labs were taken down after %q", *down, *asked)
			}
			text, err := os.ReadFile(filepath.Join(q.dir, qualify.FileJSON))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate("qualification", text); err != nil {
				t.Error(err)
			}
		})
	}
}

// A signal ends a qualification in any part of it, and what was found is stored.
func TestQualificationIsInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	q, down, asked := qualified(t, map[string]bisectionStep{"node-drain 1.8.1": ran("1.8.1", framework.Reproduced)}, nil)
	judge := q.judge
	q.judge = func(tr trial) (func(context.Context, string) (bisectionStep, error), func() error) {
		j, d := judge(tr)
		return func(ctx context.Context, version string) (bisectionStep, error) {
			if len(*asked) == 1 {
				interrupt() // in the middle of the second run
			}
			return j(ctx, version)
		}, d
	}
	if err := q.run(ctx); !errors.Is(err, engine.ErrInterrupted) || *down != 1 || len(*asked) != 2 {
		t.Fatalf("%v, %d labs down after %q", err, *down, *asked)
	}
	text, err := os.ReadFile(filepath.Join(q.dir, qualify.FileText))
	if err != nil || !bytes.HasPrefix(text, []byte("UNKNOWN: ")) || !bytes.Contains(text, []byte("node-drain (")) || !bytes.Contains(text, []byte(notComeTo)) {
		t.Errorf("%v\n%s", err, text)
	}
}

// What was interrupted goes on: what ran is not run again, and what did not is.
func TestQualificationGoesOn(t *testing.T) {
	steps := map[string]bisectionStep{
		"node-drain 1.8.1":        ran("1.8.1", framework.Reproduced),
		"node-drain 1.11.1":       {Outcome: bisect.Skipped, Why: "not built: it broke"},
		"masquerade-drift 1.11.1": ran("1.11.1", framework.Prevented),
	}
	upgrades := 0
	made := func(err error) func(context.Context, string, string) (upgrade.Measures, error) {
		return func(context.Context, string, string) (upgrade.Measures, error) { upgrades++; return unharmed(), err }
	}
	q, _, asked := qualified(t, steps, nil)
	q.upgrade = made(engine.ErrInterrupted)
	if err := q.run(t.Context()); !errors.Is(err, engine.ErrInterrupted) || len(*asked) != 3 {
		t.Fatalf("%v after %q", err, *asked)
	}
	dir, began := q.dir, q.began

	steps["node-drain 1.11.1"] = ran("1.11.1", framework.Prevented)
	q, _, asked = qualified(t, steps, nil)
	if err := q.goOn(dir); err != nil {
		t.Fatal(err)
	}
	q.upgrade = made(nil)
	if err := q.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"node-drain 1.11.1"}, *asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	j := q.judged()
	if j.Verdict != qualify.Go || !j.Began.Equal(began) || upgrades != 2 || q.dir != dir {
		t.Errorf("%s, began %s (want %s), %d upgrades, in %s (want %s)", j.Heading(), j.Began, began, upgrades, q.dir, dir)
	}

	// One that has come to its end is only judged.
	q, _, asked = qualified(t, nil, nil)
	if err := q.goOn(dir); err != nil {
		t.Fatal(err)
	}
	q.upgrade = made(errors.New("not again"))
	if err := q.run(t.Context()); err != nil || len(*asked) > 0 || upgrades != 2 || q.judged().Heading() != j.Heading() {
		t.Errorf("%v, asked %q, %d upgrades, %s; want %s", err, *asked, upgrades, q.judged().Heading(), j.Heading())
	}
	var out strings.Builder
	q.printPlan(&out)
	if !strings.Contains(out.String(), "1.8.1: reproduced already") || !strings.Contains(out.String(), "made already") {
		t.Errorf("the plan does not say what is there:\n%s", out.String())
	}
}

// What nothing can go on with is refused.
func TestQualificationDoesNotGoOn(t *testing.T) {
	store := func(t *testing.T, change func(*qualification)) string {
		q, _, _ := qualified(t, nil, nil)
		change(q)
		if err := q.save(); err != nil {
			t.Fatal(err)
		}
		return q.dir
	}
	other := store(t, func(q *qualification) { q.in.To = "1.12.0" })
	configured := store(t, func(q *qualification) {
		q.in.Configuration.Source, q.in.Configuration.ConfigMap = "-", "kube-system/cilium-config"
	})
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, qualify.FileJSON), []byte(`{"schema":"relapse.report/v2"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	for _, test := range []struct{ name, dir, says string }{
		{"nothing there", empty, "--resume: there is no qualification.json in " + empty},
		{"something else", broken, "--resume: " + filepath.Join(broken, qualify.FileJSON) + `: its schema is "relapse.report/v2", not "relapse.qualification/v1"`},
		{"another upgrade", other, "--resume: " + other + " is of cilium 1.8.1 to 1.12.0"},
		{"the ConfigMap is not given", configured, "--resume: " + configured + " was also asked about the ConfigMap kube-system/cilium-config: give it again, by --config"},
	} {
		t.Run(test.name, func(t *testing.T) {
			q, _, _ := qualified(t, nil, nil)
			err := q.goOn(test.dir)
			if err == nil || err.Error() != test.says || exitStatus(t.Context(), err) != exitUsage {
				t.Errorf("got  %v\nwant %s", err, test.says)
			}
		})
	}
}

func TestQualificationIsPlanned(t *testing.T) {
	q, _, _ := qualified(t, nil, nil)
	var out strings.Builder
	q.printPlan(&out)
	q.upgrade, q.config = nil, &qualify.ConfigMap{Name: "cilium-config", Data: map[string]string{"masquerade": "false"}}
	if err := q.prepare("cilium", "1.8.1", "1.11.1", qualify.Path{Skipped: []string{"1.9", "1.10"}}); err != nil {
		t.Fatal(err)
	}
	q.printPlan(&out)
	golden(t, "qualify-plan", out.String())
}

// What the agents themselves say decides; the table says why.
func TestConfiguration(t *testing.T) {
	in := qualify.Inputs{From: "1.8.1", To: "1.11.1"}
	data := map[string]string{"tunnel": "disabled", "masquerade": "false", "native-routing-cidr": "10.0.0.0/8"}
	from := agents.Answer{Fields: map[string]string{"A": "1", "B": "1", "Old": "1"}}
	to := agents.Answer{Fields: map[string]string{"A": "1", "B": "2", "New": "1"}, Masquerade: true}
	c, err := configuration(configdrift.Cilium(), in, data, from, to)
	if err != nil || c.RefusedTo != "" || len(c.Effective) != 2 || c.Effective[0] != (qualify.Effective{Field: "B", From: "1", To: "2"}) {
		t.Errorf("%v, %+v", err, c)
	}
	if d := c.Drifts[0]; d.Key != "masquerade" || d.Kind != configdrift.NotRead || d.Before != "false" || d.After != "true" {
		t.Errorf("%+v", d)
	}
	if c, err = configuration(configdrift.Cilium(), in, data, from, agents.Answer{Fatal: "no such key"}); err != nil || c.RefusedTo != "no such key" || len(c.Effective) > 0 {
		t.Errorf("%v, %+v", err, c)
	}
	if _, err = configuration(configdrift.Cilium(), qualify.Inputs{From: "1.8.1", To: "1.11.2"}, data, from, to); err == nil {
		t.Error("the table does not have 1.11.2")
	}
}

func TestTrials(t *testing.T) {
	for component, want := range map[string]string{
		"cilium":      "node-drain with 1.0.0 and with 2.0.0, masquerade-drift with the upgrade itself",
		"kube-router": "unpinned-image with the upgrade itself", "kube-proxy": "ipvs-deadlock with 1.0.0 and with 2.0.0",
		"calico": "added-nic with 1.0.0 and with 2.0.0",
	} {
		trials, err := trialsOf(scenarios.All, component, "1.0.0", "2.0.0")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, tr := range trials {
			got = append(got, tr.plan())
			i, err := tr.incident()
			if err != nil || i.OfUpgrade != strings.Contains(i.Command, "1.0.0") || !strings.Contains(i.Command, "2.0.0") {
				t.Errorf("%v, %+v", err, i)
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %q, want %s", component, got, want)
		}
	}
}
