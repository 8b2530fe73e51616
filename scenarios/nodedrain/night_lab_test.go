//go:build lab && night

package nodedrain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/detect"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/framework/report"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/topology"
	"github.com/relapse-dev/relapse/topology/await"
	"github.com/relapse-dev/relapse/topology/must"
)

// afterFault makes the fault do more, and undo that as well.
func afterFault(s *framework.Script, more, undo framework.Action) {
	back := s.Fault.Undo
	s.Fault.Inject = framework.InOrder(s.Fault.Inject, more)
	s.Fault.Undo = func(ctx context.Context, r *framework.Run) error { return errors.Join(undo(ctx, r), back(ctx, r)) }
}

// process is a member of the lab whose first process can be stopped.
type process interface {
	PID(context.Context) (int, error)
}

func signalled(member func(*framework.Run) process, signal syscall.Signal) func(context.Context, *framework.Run) error {
	return func(ctx context.Context, r *framework.Run) error {
		pid, err := member(r).PID(ctx)
		if err != nil {
			return err
		}
		return syscall.Kill(pid, signal)
	}
}

// blackholed has all routers send a range to an address that no machine has, or removes that route.
func blackholed(p netip.Prefix, add bool) func(context.Context, *framework.Run) error {
	return func(ctx context.Context, r *framework.Run) error {
		if add {
			return labaccess.Lab(r).AddStatic(ctx, p, unused)
		}
		return labaccess.Lab(r).RemoveStatic(ctx, p)
	}
}

var unused = netip.MustParseAddr("10.4.94.199")

// TestSabotage breaks a part of the lab of the fixed version or of the harness, one at a time: no such
// run may pass. What else must not pass, the engine's cases show.
func TestSabotage(t *testing.T) {
	host := func(r *framework.Run) process { return labaccess.Lab(r).Host(outside.Name) }
	tor := func(r *framework.Run) process {
		handle, err := labaccess.Lab(r).Router(lab.Routers[1].Name)
		if err != nil {
			panic(err) // it is declared
		}
		return handle
	}
	defer scenariotest.Down(t, Scenario)
	for name, change := range map[string]func(*framework.Script){
		"a source that dies in mid-run": func(s *framework.Script) {
			s.Aftermath = nil // they read it as well
			afterFault(s, signalled(tor, syscall.SIGSTOP), signalled(tor, syscall.SIGCONT))
		},
		"a probe agent that is stopped": func(s *framework.Script) {
			afterFault(s, signalled(host, syscall.SIGSTOP), signalled(host, syscall.SIGCONT))
		},
		"a second route that is lost": func(s *framework.Script) {
			s.Aftermath = nil // they would see it in the routers
			afterFault(s, blackholed(rowOf("master1").use, true), blackholed(rowOf("master1").use, false))
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := Scenario.Variants[1]
			script := v.Script
			v.Script = func() framework.Script {
				made := script()
				made.Precursors, made.Remedies = nil, nil // which take the time of several runs
				change(&made)
				return made
			}
			scenariotest.Alone(t, Scenario, v, framework.Unknown, framework.Inconclusive)
		})
	}
}

// TestSliceThatCannotStart takes from the agents what they need to start. The version has not refused
// then: nothing is known of it.
func TestSliceThatCannotStart(t *testing.T) {
	defer scenariotest.Down(t, Scenario)
	for _, test := range []struct {
		name    string
		install func(context.Context, *framework.Run) error
	}{
		{
			// The slice says so, and marks the message as its own.
			"a configuration that the slice cannot run", func(ctx context.Context, r *framework.Run) error {
				c := incident(affected, cilium.ClusterPool)
				if err := framework.InOrder(cilium.Uninstalled(all, podCIDR), c.Configure, createCiliumNodes)(ctx, r); err != nil {
					return err
				}
				// Not before: with this key the operator assigns no pod ranges.
				c.Config = c.Config.With(cilium.Config{"bgp-announce-lb-ip": "true"})
				return framework.InOrder(c.Configure, c.Announced(all...))(ctx, r)
			},
		},
		{
			// The vendor's code says so.
			"no folder of the configuration", func(ctx context.Context, r *framework.Run) error {
				if err := common(affected).Install(ctx, r); err != nil {
					return err
				}
				began := time.Now()
				agents := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "cilium"}}
				elsewhere := client.RawPatch(types.JSONPatchType, []byte(
					`[{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": ["--config-dir=/nowhere"]}]`))
				if err := labaccess.Cluster(r).Client.Resources().GetControllerRuntimeClient().Patch(ctx, agents, elsewhere); err != nil {
					return err
				}
				return labaccess.Lab(r).SessionsUp(ctx, all, began)
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := Scenario.At(map[string]string{"cilium": affected})
			script, asked, why := v.Script, false, error(nil)
			v.Script = func() framework.Script {
				made := script()
				made.Install = test.install
				refuses := made.Refuses
				made.Refuses = func(ctx context.Context, r *framework.Run) (said string, err error) {
					said, err = refuses(ctx, r)
					asked, why = true, err
					return said, err
				}
				return made
			}
			scenariotest.Alone(t, Scenario, v, framework.Unknown, framework.Inconclusive)
			// Or the run has ended for another reason.
			var late *await.TimeoutError
			if !asked || why == nil || errors.As(why, &late) {
				t.Errorf("whether it refuses: asked %v, error %v; want one that says why the agents ended", asked, why)
			}
		})
	}
}

// TestWhole runs the incident on whole Cilium as on the fixed version: with the incident's
// allocations in conflict, the routers send each range in use, and none of Node.spec's, to
// its node, and the removal withdraws the removed node's range alone.
func TestWhole(t *testing.T) {
	const version = "1.19.3"
	s := Scenario
	v := Scenario.At(map[string]string{"cilium": version})
	v.Role = framework.Fixed
	script := v.Script
	v.Script = func() framework.Script {
		made, fixed := script(), fixedScript()
		made.Expected = nil
		made.Baseline, made.Precursors, made.Aftermath = fixed.Baseline, fixed.Precursors, fixed.Aftermath
		return made
	}
	s.Variants = []framework.Variant{v}
	s.Incident.Facts = nil // they refer to the variants
	r := scenariotest.Judge(t, s, engine.Options{Output: t.TempDir()})
	got := r.Variants[0]
	t.Logf("%s, run: %s; %q", got.Verdict, r.Verdict, got.Reasons)
	if got.Verdict != string(framework.Prevented) || r.Verdict != string(framework.Pass) {
		t.Errorf("%s, run: %s; want %s, %s", got.Verdict, r.Verdict, framework.Prevented, framework.Pass)
	}
}

// TestRouterKinds runs the scenario with each kind of router as its ToRs. All come to the
// same verdicts and findings.
func TestRouterKinds(t *testing.T) {
	results := map[topology.RouterKind][]string{}
	for _, kind := range topology.RouterKinds {
		s := must.Get(withRouters(Scenario, map[string]string{routerParameter.Name: string(kind)}))(t)
		r := scenariotest.Judge(t, s, engine.Options{Output: t.TempDir()})
		if r.Verdict != string(framework.Pass) {
			t.Errorf("with %s the run is %s, not %s", kind, r.Verdict, framework.Pass)
		}
		results[kind] = resultOf(r)
		t.Logf("with %s: %q", kind, results[kind])
	}
	for _, kind := range topology.RouterKinds[1:] {
		if d := cmp.Diff(results[topology.GoBGP], results[kind]); d != "" {
			t.Errorf("verdicts and findings (-%s +%s):\n%s", topology.GoBGP, kind, d)
		}
	}
}

// resultOf lists verdicts, remedies and findings of a run. It leaves out what depends on the
// moments of the polls: settling findings, which router showed one first, and latent ones of
// the fixed version. Its speaker withdraws a range some moments after the Node object was
// deleted, and a poll between the two has a route to an absent node.
func resultOf(r report.Report) []string {
	set := map[string]bool{}
	for _, v := range r.Variants {
		set[fmt.Sprintf("%s: %s, losing packets: %q", v.Name, v.Verdict, slices.Sorted(slices.Values(v.ProbesHurt)))] = true
		for _, m := range v.Remedies {
			set[fmt.Sprintf("%s: %s: %s", v.Name, m.ID, m.Verdict)] = true
		}
		for _, f := range v.Findings {
			id := f.ID()
			if passing := id.State == detect.Latent && v.Role != string(framework.Affected); id.State != detect.Pending && !passing {
				id.Routers = ""
				set[fmt.Sprintf("%s: %s: %s", v.Name, f.During, id)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}
