//go:build lab && night

package nodedrain

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/component/cilium"
	"github.com/relapse-dev/relapse/framework/engine"
	"github.com/relapse-dev/relapse/framework/labaccess"
	"github.com/relapse-dev/relapse/scenarios/scenariotest"
	"github.com/relapse-dev/relapse/topology/await"
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
			s := Scenario
			v := Scenario.Variants[1]
			script := v.Script
			v.Images = Scenario.Variants[0].Images // a lab that is kept serves what it was made with
			v.Script = func() framework.Script {
				made := script()
				made.Precursors, made.Remedies = nil, nil // which take the time of several runs
				change(&made)
				return made
			}
			s.Variants = []framework.Variant{v}
			r := scenariotest.Judge(t, s, engine.Options{Output: t.TempDir(), Keep: true, Reuse: true})
			got := r.Variants[0]
			t.Logf("%s, run: %s; %q", got.Verdict, r.Verdict, got.Reasons)
			if got.Verdict != string(framework.Unknown) || r.Verdict != string(framework.Inconclusive) {
				t.Errorf("%s, run: %s; want %s, %s", got.Verdict, r.Verdict, framework.Unknown, framework.Inconclusive)
			}
		})
	}
}

// TestSliceThatCannotStart takes from the agents what they need to start: that is no
// refusal of the version, of which nothing is known then.
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
			s := Scenario
			v := Scenario.At(map[string]string{"cilium": affected})
			script, asked, why := v.Script, false, error(nil)
			v.Images = Scenario.Variants[0].Images // a lab that is kept serves what it was made with
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
			s.Variants = []framework.Variant{v}
			r := scenariotest.Judge(t, s, engine.Options{Output: t.TempDir(), Keep: true, Reuse: true})
			got := r.Variants[0]
			t.Logf("%s, run: %s; %q; whether it refuses: %v", got.Verdict, r.Verdict, got.Reasons, why)
			if got.Verdict != string(framework.Unknown) || r.Verdict != string(framework.Inconclusive) {
				t.Errorf("%s, run: %s; want %s, %s", got.Verdict, r.Verdict, framework.Unknown, framework.Inconclusive)
			}
			// Or the run has ended for another reason.
			var late *await.TimeoutError
			if !asked || why == nil || errors.As(why, &late) {
				t.Errorf("whether it refuses: asked %v, error %v; want one that says why the agents ended", asked, why)
			}
		})
	}
}
